"""Parameters of which each rank keeps its share, and which are whole while somebody uses them.

A parameter stays the program's own object. While it is not whole its class is another one, which PyTorch tells of each
function that is called with it: what needs its values gathers it first. Its memory is given back when other parameters
are gathered, unless somebody else holds it (a view, a graph): as in one process that goes on to be the parameter's. So
what a program does to a parameter never finds a part of it. What slips past reads not-a-number, and is seen.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.ranks.group import Group
from overdrive.ranks.norms import norm_of_parts
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import (
    as_plain_tensors,
    in_backward,
    storage_id,
    storage_owners,
    unseen_by_modes,
    version_of,
)
from overdrive.techniques.parallel.data_parallel.sharded.share import Share, exchange

# What these tell is right while a parameter is not whole.
_ATTRIBUTES = frozenset(
    (
        *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad", "is_leaf", "grad_fn"),
        *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "_version", "_backward_hooks", "names"),
        *("_post_accumulate_grad_hooks", "output_nr", "retains_grad", "is_xla", "is_mps", "is_xpu", "is_nested"),
    )
)
_METHODS = frozenset(
    (
        *("size", "dim", "numel", "nelement", "element_size", "ndimension", "is_floating_point", "is_complex"),
        *("is_signed", "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_"),
        *("__hash__", "__len__", "is_inference"),
    )
)
_OWNERS = 2  # of the memory of a parameter that nobody else uses: it, and the handle that asks
_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
    "{} is at version {}; expected version {} instead"
)


class Sharded(nn.Parameter):
    """A parameter that is not whole, or whose gradient is not."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _kept[-1].asked(function, args, kwargs or {})

    def __deepcopy__(self, memo: Any) -> Any:
        with _kept[-1].as_it_was(self):
            return copy.deepcopy(self, memo)


_kept: list[Kept] = []  # of this process: no parameter holds it, so that parameters can be copied


class Held:
    """One parameter, and its unit: those that are gathered with it."""

    def __init__(self, parameter: nn.Parameter, share: Share, unit: Unit, gone: Callable[[Any], None]) -> None:
        self._parameter = weakref.ref(parameter, gone)
        self.share, self.unit = share, unit
        self.like = parameter.detach().new_empty(0)  # its type and device
        self.part: torch.Tensor | None = None  # None where all of it is in memory
        self.gradient: torch.Tensor | None = None  # this rank's; None where there is none, or it is in its place, whole
        self.looked = False  # the program has seen its gradient, which is in its place

    @property
    def parameter(self) -> nn.Parameter | None:
        return self._parameter()


class Unit:
    def __init__(self) -> None:
        self.all: list[Held] = []
        self.is_open = True  # its parameters are whole, and of their own class


class Kept:
    """All that one run keeps its share of. `differs`: told of each parameter that is another one on each rank."""

    def __init__(self, group: Callable[[], Group], differs: Callable[[Any], None]) -> None:
        self._group_of, self._differs = group, differs
        self._held: dict[int, Held] = {}  # by the parameter's id
        self._by_memory: dict[int, Held] = {}
        self._open: list[Unit] = []
        self._aside = self._parts = False
        _kept.append(self)

    def of(self, parameter: Any) -> Held | None:
        held = self._held.get(id(parameter))
        return held if held is not None and held.parameter is parameter else None

    def __len__(self) -> int:
        return len(self._held)

    def take(self, parameters: Sequence[nn.Parameter]) -> None:
        """Keep a share of these, which are gathered together."""
        group, unit = self._group_of(), Unit()
        for each in parameters:
            key = id(each)
            gone = lambda _, key=key: self._held.pop(key, None)  # type: ignore[misc] # noqa: E731
            held = Held(each, Share(each, group.rank, group.size), unit, gone)
            unit.all.append(held)
            self._held[key] = held
            self._by_memory[storage_id(each)] = held
            self._differs(each)
        self._open.append(unit)

    # -- the program asks -----------------------------------------------------------------------

    def asked(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A function is called with parameters that are not whole."""
        name = getattr(function, "__name__", "")
        attribute = getattr(getattr(function, "__self__", None), "__name__", "") if name in _ACCESS else ""
        if attribute == "grad" and (held := self.of(args[0])) is not None:
            if name == "__get__" and self._parts and held.gradient is not None:
                return held.gradient
            self._gradient_asked(held, name, args)
        elif not (name in _METHODS or attribute in _ATTRIBUTES):
            self.gather([held for each in pytree.tree_leaves((args, kwargs)) if (held := self.of(each)) is not None])
            if not any(type(each) is Sharded for each in pytree.tree_leaves((args, kwargs))):
                return function(*args, **kwargs)
        with as_plain_tensors():
            return function(*args, **kwargs)

    def _gradient_asked(self, held: Held, access: str, args: Any) -> None:
        if self._aside:
            return
        if access != "__get__":
            held.gradient = None
            held.looked = access == "__set__" and args[1] is not None
        elif held.gradient is not None:
            held.looked = True
            with torch.no_grad(), _unseen():
                whole = held.share.whole(held.gradient, self._group_of(), "a gradient that is looked at")
                held.gradient = None
                args[0].grad = whole
                self.settle(held)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within it, `.grad` is what is in its place, and writing to it says nothing of the parts."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    @contextmanager
    def in_parts(self) -> Iterator[None]:
        """Within it, `.grad` is this rank's share, where there is no more."""
        before, self._parts = self._parts, True
        try:
            yield
        finally:
            self._parts = before

    @contextmanager
    def as_it_was(self, parameter: Any) -> Iterator[None]:
        """Within it, this one is whole, and of its own class."""
        held = self.of(parameter)
        if held is not None:
            self.gather([held])
        parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            if held is not None:
                self.settle(held)

    # -- gathered and given back ----------------------------------------------------------------

    def gather(self, wanted: Iterable[Held]) -> None:
        units = [*dict.fromkeys(each.unit for each in wanted if not each.unit.is_open)]
        if not units:
            return
        group = self._group_of()
        if not (group.mine() or in_backward()):
            raise RuntimeError("a parameter that is divided over ranks is not seen in another thread or process")
        self.give_back(units)
        with torch.no_grad(), _unseen():
            for unit in units:
                self._gather(unit, group)

    def gather_all(self, parameters: Iterable[Any]) -> None:
        """All of these at once: where a process is forked, it cannot gather."""
        self.gather(held for each in parameters if (held := self.of(each)) is not None)

    def give_back(self, but: Sequence[Unit] = ()) -> None:
        """Let go of what is whole and not needed now."""
        with torch.no_grad(), _unseen():
            for unit in self._open:
                if unit not in but:
                    unit.is_open = False
                    for held in unit.all:
                        self._give_back(held)
        self._open = [each for each in self._open if each.is_open]

    def free_memory(self) -> None:
        """Try again to give back what somebody else held."""
        with torch.no_grad(), _unseen():
            for held in [*self._held.values()]:
                if not held.unit.is_open and held.part is None:
                    self._give_back(held)

    def _gather(self, unit: Unit, group: Group) -> None:
        made = []
        for held in unit.all:
            parameter = held.parameter
            if held.part is not None:
                whole = held.share.blank(held.like)
                held.share.of(whole).copy_(held.part)
            elif parameter is not None:
                whole = parameter.data
            else:  # it is gone here, and may not be on other ranks
                whole = held.share.blank(held.like)
            made.append((whole, held.share))
        exchange(made, group, "a layer's parameters")
        unit.is_open = True
        self._open.append(unit)
        for held, (whole, _) in zip(unit.all, made, strict=True):
            held.part = None
            if (parameter := held.parameter) is not None:
                set_data(parameter, whole)
                self._by_memory[storage_id(whole)] = held
                self.settle(held)

    def _give_back(self, held: Held) -> None:
        parameter = held.parameter
        if parameter is None or held.part is not None:
            return
        parameter.__class__ = nn.Parameter
        if parameter.shape != held.share.shape or parameter.stride() != held.share.stride:
            held.share = Share(parameter, held.share.rank, len(held.share.sizes))  # the program gave it other data
        held.like = parameter.data.new_empty(0)
        if storage_owners(parameter.untyped_storage()) == _OWNERS:
            self._by_memory.pop(storage_id(parameter), None)
            held.part = held.share.of(parameter.data).clone()
            self.hide(held)
        self.settle(held)

    def hide(self, held: Held) -> None:
        """Where its values would be are none."""
        assert held.part is not None
        if (parameter := held.parameter) is not None:
            set_data(parameter, held.part.new_full((1,), float("nan")).expand(held.share.shape))
            self.settle(held)

    def settle(self, held: Held) -> None:
        """Have the class that its state asks for."""
        whole = held.unit.is_open and held.gradient is None
        if (parameter := held.parameter) is not None:
            parameter.__class__ = nn.Parameter if whole else Sharded

    # -- gradients ------------------------------------------------------------------------------

    def takes(self, leaf: Any) -> Held | None:
        """Where it is one whose gradient is to be in parts, and not in its place."""
        held = self.of(leaf)
        return None if held is None or held.looked else held

    def add(self, held: Held, mean: torch.Tensor) -> None:
        """Of its gradient, in the order of the memory: all of it, or what comes to what was there."""
        part = mean.narrow(0, sum(held.share.sizes[: held.share.rank]), held.share.size)
        if held.gradient is None:
            held.gradient = part.to(held.like.dtype, copy=True)
            self.settle(held)
        else:
            held.gradient.add_(part)

    def zeroed(self, subject: Any, call: Callable[..., Any], set_to_none: bool = True) -> Any:
        """By `zero_grad` of an optimizer or a module."""
        trained = parameters_of(subject) if hasattr(subject, "param_groups") else subject.parameters()
        for held in filter(None, map(self.of, trained)):
            if set_to_none:
                held.gradient, held.looked = None, False
                self.settle(held)
            elif held.gradient is not None:
                held.gradient.zero_()
        with self.aside():
            return call(set_to_none)

    def clipped(self, parameters: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.in_parts():
            return call(*args, **kwargs)

    def norm(self, call: Callable[..., Any], gradients: Sequence[Any], kind: float, foreach: Any) -> Any:
        """Of all gradients together, with the parts of all ranks; None where there are none."""
        own = {id(each.gradient) for each in self._held.values() if each.gradient is not None}
        return norm_of_parts(call, gradients, own, kind, foreach, self._group_of())

    # -- graphs ---------------------------------------------------------------------------------

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Operations made within it keep no parameters for their backward pass, but where to find them."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def _pack(self, tensor: torch.Tensor) -> Any:
        with as_plain_tensors():
            key = storage_id(tensor)
            held = self._by_memory.get(key)
            parameter = held.parameter if held is not None else None
            if parameter is None or tensor.dtype != parameter.dtype or storage_id(parameter) != key:
                return tensor, version_of(tensor)
            version = version_of(parameter)
            return held, version, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> torch.Tensor:
        with as_plain_tensors():
            if isinstance(packed[0], torch.Tensor):
                tensor, version = packed
                now, shape = version_of(tensor), tensor.shape
            else:
                held, version, size, stride, offset = packed
                parameter = held.parameter  # the graph has it
                self.gather([held])
                now, shape = version_of(parameter), parameter.shape
                tensor = parameter.data.as_strided(size, stride, offset)
            if now != version:
                raise RuntimeError(_WRITTEN.format([*shape], now, version))
            return tensor


_ACCESS = ("__get__", "__set__", "__delete__")


def set_data(parameter: Any, data: Any) -> None:
    """Of what class it is besides is to be settled then."""
    if type(parameter) is Sharded:
        parameter.__class__ = nn.Parameter
    parameter.data = data


@contextmanager
def _unseen() -> Iterator[None]:
    """What we do with parameters is no call of the program's, and no part of what it computes."""
    with unseen_by_modes(), torch.inference_mode(False):
        yield
