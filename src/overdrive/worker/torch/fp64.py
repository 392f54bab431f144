"""Makes whatever PyTorch computes inside this mode compute in fp64, in a program that knows nothing of it.

Tensors, complex ones too, are widened where they enter a computation, not where they lie: views, in-place changes and
what NumPy shares stay as they are, so that the program's own aliasing holds. Random numbers are drawn
as the program draws them (in fp32) and widened afterwards, because an fp64 draw consumes others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from overdrive.seams.points import reason_of
from overdrive.seams.torch.layouts import is_sparse

_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_NARROW = {torch.float64: torch.float32, torch.complex128: torch.complex64}
REDUCED, DOUBLE = tuple(_WIDE), tuple(_NARROW)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions whose result shares memory with what goes in, or that only look: left alone.
_LEFT_ALONE = _names(
    """__get__ __set__ __setitem__ __getitem__ __delete__ backward grad detach numpy item tolist data_ptr storage
    untyped_storage size dim numel stride shape is_floating_point is_contiguous element_size get_device
    view view_as reshape reshape_as transpose permute movedim swapaxes swapdims squeeze unsqueeze expand expand_as
    narrow select flatten unflatten ravel t chunk split tensor_split hsplit vsplit dsplit unbind diagonal unfold
    from_numpy as_tensor frombuffer asarray from_dlpack requires_grad_ register_hook retain_grad contiguous
    __len__ __iter__ __bool__ __float__ __int__ __index__ __repr__ __format__ __array__ __hash__ __deepcopy__
    __reduce_ex__ pin_memory is_pinned set_ resize_ _set_grad_enabled record_stream share_memory_
    manual_seed set_rng_state get_rng_state save load"""
)
_CASTS = {"float": torch.float64, "half": torch.float64, "bfloat16": torch.float64}
_CASTS |= {"cfloat": torch.complex128, "chalf": torch.complex128}
_MOVES = frozenset(("to", "type", "cuda", "cpu", "type_as"))
# exponential_, uniform_ and the dropouts draw the same numbers in either width (seen on torch 2.13, CPU);
# randn does not. All are drawn in the program's own width.
_DRAWS = _names(
    "randn rand normal randn_like rand_like bernoulli multinomial poisson rrelu rrelu_ binomial _standard_gamma"
)
_DRAWS_IN_PLACE = _names("normal_ uniform_ exponential_ bernoulli_ cauchy_ log_normal_ geometric_")


class InDouble(TorchFunctionMode):
    """While entered, PyTorch computes in fp64."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _DRAWS_IN_PLACE:
            return _draw_in_place(function, args, kwargs)
        if name in _LEFT_ALONE or name.startswith("_record_function") or _in_place(name):
            return function(*args, **kwargs)
        if name in _CASTS and args[0].dtype in DOUBLE:
            return args[0].to(_CASTS[name])
        if name in _DRAWS:
            return tree_map(widen, function(*tree_map(narrow, args), **tree_map(narrow, kwargs)))
        if name in _MOVES or "dtype" in kwargs or any(isinstance(each, torch.dtype) for each in args):
            args, kwargs = tree_map(_wide_type, args), tree_map(_wide_type, kwargs)
        if "out" in kwargs:
            return function(*args, **kwargs)
        return tree_map(widen, function(*tree_map(widen, args), **tree_map(widen, kwargs)))


@contextmanager
def computing_in_double(module: torch.nn.Module, others: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """PyTorch computes in fp64, and what this module holds is fp64, as are the other tensors; afterwards all is as it
    was."""
    tensors = {id(each): each for each in (*module.parameters(), *module.buffers(), *others)}
    held = [(each, each.data) for each in tensors.values() if each.dtype in REDUCED]
    mkldnn = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # its recurrent layers know no fp64, and fail
    try:
        for tensor, data in held:
            tensor.data = widen(data)
        with InDouble():
            yield
    finally:
        torch.backends.mkldnn.enabled = mkldnn
        for tensor, data in held:
            tensor.data = data


def widen(thing: Any) -> Any:
    """A tensor of reduced precision as fp64, within the graph of its gradients; all else as it is."""
    if not isinstance(thing, torch.Tensor) or thing.dtype not in REDUCED:
        return thing
    if thing.layout is torch.strided or is_sparse(thing):
        return thing.to(_WIDE[thing.dtype])
    return thing


class _Copying(TorchFunctionMode):
    """While entered, a copy of a tensor is its values in fp64, whatever graph it is part of."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") != "__deepcopy__":
            return function(*args, **(kwargs or {}))
        tensor, memo = args
        found = memo.get(id(tensor))
        if found is None:
            found = memo[id(tensor)] = _own_copy(tensor)
        return found


def _own_copy(tensor: torch.Tensor) -> torch.Tensor:
    made = tensor.detach().clone()
    return widen(made).requires_grad_(tensor.requires_grad)  # type: ignore[no-any-return]


def wide_copies(thing: Any, module: torch.nn.Module) -> Any:
    """Of what a call of this module is given, whatever holds the tensors; the module itself stays itself.

    Raises:
        RuntimeError: something cannot be copied.
    """
    try:
        with _Copying():
            copies = copy.deepcopy(thing, {id(module): module})
    except Exception as error:
        raise RuntimeError(f"what its model is given cannot be copied ({reason_of(error)[:150]})") from None
    return tree_map(widen, copies)


def narrow(thing: Any) -> Any:
    """The way back, in values."""
    if isinstance(thing, torch.Tensor) and thing.dtype in DOUBLE:
        return thing.to(_NARROW[thing.dtype])
    return thing


def _wide_type(thing: Any) -> Any:
    return _WIDE.get(thing, thing) if isinstance(thing, torch.dtype) else thing


def _in_place(name: str) -> bool:
    """`add_`, `_foreach_mul_`, `__iadd__`: a copy in their place would lose the change."""
    return (name.endswith("_") and not name.endswith("__")) or (name.startswith("__i") and name != "__invert__")


def _draw_in_place(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0]
    if target.dtype not in DOUBLE:
        return function(*args, **kwargs)
    drawn = torch.empty_like(target, dtype=_NARROW[target.dtype])
    function(drawn, *tree_map(narrow, args[1:]), **tree_map(narrow, kwargs))
    with torch.no_grad():
        return target.copy_(drawn)
