"""A ReLU whose result is not computed until somebody needs it, which a max pool does not.

`max_pool(relu(x))` is `relu(max_pool(x))`, to the bit and backward too. ReLU is monotone, so a window's maximum is
the same element (the first of its equals; the last NaN). Where it is not positive no gradient passes in either
order, and a zero is added where the other order has a zero. Node by node the gradients arrive in the same order,
as nothing else may use x in between. What differs, and so is computed as written:
- the indices that a pool returns, where a whole window is not positive;
- windows that lie in the padding altogether (dilated ones can): minus infinity in one order, 0 in the other;
- on a CPU, relu(-0.0) is -0.0: a window of, say, (-1, -0.0) has the maximum 0.0 in one order and -0.0 in the other.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

_ATTRIBUTE = "overdrive_relu"  # on a tensor of class Deferred: its ReLU; on the ReLU's argument: a weak reference
_EMPTY = torch.empty(0)  # the body of results that are not computed; nothing can mistake it for them
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_relu, _relu_ = torch._C._VariableFunctions.relu, torch._C._VariableFunctions.relu_  # as torch made them, unseen
_swap: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl


class Unsettled(Exception):
    """A result was asked for too late."""


class Relu:
    """One ReLU whose result is deferred; or `watched`, when it is computed and one only sees who uses it."""

    __slots__ = ("__weakref__", "_grad", "_missed", "_source", "made", "others", "pools", "result", "source", "watched")

    def __init__(self, tensor: torch.Tensor, in_place: bool, watched: bool, missed: Callable[[], None]) -> None:
        self.watched = watched
        self._missed = missed  # called when it turns out that deferring was of no use
        self.pools = 0  # max pools that took the result
        self.others = False  # something else needed the result, or the argument
        self._grad = torch.is_grad_enabled()
        # The result holds this object, which holds the argument: when the result is dropped all are.
        self._source = None if in_place or watched else tensor
        if watched:
            result = _relu_(tensor) if in_place else _relu(tensor)
            result.__class__ = Deferred
        elif in_place:
            # Counted as written to, as it is in the program: what the pool keeps of it is of this version.
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
            result = tensor
            result.__class__ = Deferred
        else:
            result = torch.Tensor._make_subclass(Deferred, _EMPTY)
        setattr(result, _ATTRIBUTE, self)
        self.made: torch.Tensor | None = result  # for who asked for the ReLU, who takes it from here
        self.result = weakref.ref(result)
        self.source = weakref.ref(tensor)
        if not in_place:
            setattr(tensor, _ATTRIBUTE, weakref.ref(self))
            tensor.__class__ = Deferred

    def take(self) -> torch.Tensor:
        result, self.made = self.made, None
        assert result is not None
        return result

    def seen_still(self) -> bool:
        """Whether the program still holds the result, or the argument of what was watched."""
        held = _holders(self.result) > _no_holders()
        return held or (self.watched and _holders(self.source) > _no_holders())

    def drop(self) -> None:
        """Nobody holds the result: autograd may keep it, and asks for its shape only."""
        self._plain()

    def settle(self) -> None:
        """Make result and argument what they are in the program: plain tensors, the result computed."""
        result = self.result()
        self._plain()
        if result is None or self.watched:
            return
        self.watched = True
        with torch.set_grad_enabled(self._grad):
            if self._source is not None:
                try:
                    _swap(result, _relu(self._source))
                except RuntimeError as error:  # torch itself took the tensor, unseen: a custom autograd function
                    raise Unsettled("a ReLU's result went where it could not be computed any more") from error
            else:
                if not result.is_inference():  # which have no versions; others are counted up once more now
                    torch._C._autograd._unsafe_set_version_counter((result,), (result._version - 1,))
                _relu_(result)

    def _plain(self) -> None:
        for tensor in (self.result(), self.source()):
            if tensor is not None and type(tensor) is Deferred:
                tensor.__class__ = torch.Tensor  # type: ignore[assignment]
                delattr(tensor, _ATTRIBUTE)

    def pool(self, pool: Callable[..., torch.Tensor], arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """What this max pool makes of the result."""
        result = self.result()
        assert result is not None
        if self.watched:
            self.pools += 1
            return _plainly([result], pool, (result, *arguments), settings)
        if torch.is_grad_enabled() is not self._grad:
            return self.otherwise(pool, (result, *arguments), settings)
        source = result if self._source is None else self._source
        pooled = _plainly([source], pool, (source, *arguments), settings)
        pooled = _relu(pooled) if pooled._is_view() else _relu_(pooled)
        if _keeps_negative_zero(pooled.device.type, pooled.dtype) and _has_sign_bits(pooled):
            return self.otherwise(pool, (result, *arguments), settings)
        self.pools += 1
        return pooled

    def wanted(self) -> None:
        """Something else than a max pool wants the result or the argument."""
        self.others = True
        self._missed()
        self.settle()

    def otherwise(self, function: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The function's result where the pool cannot come first."""
        self.wanted()
        return function(*arguments, **settings)


class Deferred(torch.Tensor):
    """The result of such a ReLU, or its argument, for as long as it may not be touched unseen."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if type(first) is Deferred:
            relu = _relu_of(first)
            if func in _metadata():
                source = first if relu is None or relu._source is None else relu._source
                return _plainly([source], func, (source, *args[1:]), kwargs)
            if relu is not None and first is relu.result() and func in _pools() and _commutes(args, kwargs):
                return relu.pool(func, args[1:], kwargs)
        compute((args, kwargs))
        return func(*args, **kwargs)


def compute(things: Any) -> None:
    """Make all deferred tensors among these what they are in the program."""
    for tensor in tree_leaves(things):
        if type(tensor) is Deferred:
            relu = _relu_of(tensor)
            if relu is None:  # the ReLU's argument, and its result is gone
                tensor.__class__ = torch.Tensor  # type: ignore[assignment]
                delattr(tensor, _ATTRIBUTE)
            else:
                relu.wanted()


def _holders(reference: weakref.ref[torch.Tensor]) -> int:
    """A number that is larger where Python code holds the tensor than where autograd alone does, or nobody."""
    tensor = reference()
    return 0 if tensor is None else sys.getrefcount(tensor) - (tensor._use_count() > 1)  # type: ignore[attr-defined]


@cache
def _no_holders() -> int:
    return _held_and_not()[1]


@cache
def _held_and_not() -> tuple[int, int]:
    numbers = []
    with torch.inference_mode(False), torch.enable_grad():
        for held in (True, False):
            tensor = torch.ones(1, 1, 2, 2, requires_grad=True) * 1
            reference = weakref.ref(tensor)
            pooled = F.max_pool2d(tensor, 2)  # keeps it for its backward pass
            if not held:
                del tensor
            numbers.append(_holders(reference))
            del pooled
    return numbers[0], numbers[1]


def can_tell() -> bool:
    """Whether this PyTorch shows who holds a tensor that autograd keeps."""
    held, not_held = _held_and_not()
    return held == not_held + 1


def _relu_of(tensor: Any) -> Relu | None:
    held = tensor.__dict__[_ATTRIBUTE]
    return held if isinstance(held, Relu) else held()


def _plainly(tensors: list[Any], function: Callable[..., Any], arguments: Any, settings: dict[str, Any]) -> Any:
    """The function's result where these tensors are plain for as long as it runs."""
    for tensor in tensors:
        tensor.__class__ = torch.Tensor
    try:
        return function(*arguments, **settings)
    finally:
        for tensor in tensors:
            tensor.__class__ = Deferred


@cache
def _pools() -> frozenset[Any]:
    names = ("max_pool1d", "max_pool2d", "max_pool3d")
    adaptive = {getattr(F, f"adaptive_{name}") for name in names}
    holders = (F, torch, torch._C._VariableFunctions)  # as torch made them, too
    return frozenset({getattr(holder, name) for name in names for holder in holders} | adaptive)


@cache
def _metadata() -> frozenset[Any]:
    """What may be asked of the result without computing it: it is the argument's own."""
    names = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda", "layout")
    methods = ("size", "dim", "numel", "stride", "is_floating_point", "is_contiguous", "__len__", "ndimension")
    return frozenset(
        {getattr(torch.Tensor, name).__get__ for name in names} | {getattr(torch.Tensor, name) for name in methods}
    )


def _commutes(arguments: tuple[Any, ...], settings: dict[str, Any]) -> bool:
    """Whether a pool with these settings has no dilation and gives no indices."""
    # In this order, adaptive pools but for the last two: input, size, stride, padding, dilation, ceil_mode, indices.
    dilation = arguments[4] if len(arguments) > 4 else settings.get("dilation", 1)
    whole = dilation in (1, (1,), (1, 1), (1, 1, 1)) or (isinstance(dilation, list) and set(dilation) == {1})
    adaptive_indices = len(arguments) == 3 and isinstance(arguments[2], bool) and arguments[2]
    return whole and not adaptive_indices and not settings.get("return_indices") and len(arguments) < 7


@cache
def _keeps_negative_zero(device: str, dtype: torch.dtype) -> bool:
    return bool(torch.signbit(_relu(torch.full((67,), -0.0, device=device, dtype=dtype))).any())


def _has_sign_bits(tensor: torch.Tensor) -> bool:
    """Whether a rectified tensor holds a -0.0 (or a NaN with a sign); a read of it as integers."""
    if not tensor.numel():
        return False
    with torch.no_grad():
        return bool(tensor.view(_INTEGER[tensor.element_size()]).amin() < 0)
