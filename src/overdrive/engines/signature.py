"""What a call is given, as far as an engine is built for it: the structure, the shapes and types, the plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.engines.runtime import PLAIN, Array, plain_key
from overdrive.seams.torch.layouts import as_it_lies

# What NumPy can hand to an engine and back.
NUMERIC = (
    *(torch.float32, torch.float64, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
_FLAT = frozenset((torch.Tensor, torch.nn.Parameter, *PLAIN))


@dataclass(frozen=True)
class Signature:
    """`key` is equal for calls that are alike, `form` for those that differ in sizes alone; `tensors` are what this
    call gives, in order."""

    key: Any
    tensors: tuple[torch.Tensor, ...]
    form: Any

    def arrays(self) -> list[Array]:
        """The tensors, in their own memory."""
        return list(map(as_it_lies, self.tensors))


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature | str:
    """A text where something is given that no engine takes: what that is. Other objects, sparse tensors, on a GPU."""
    leaves, spec = _flat(args, kwargs)
    kinds: list[Any] = [spec]
    form: list[Any] = [spec]
    tensors: list[torch.Tensor] = []
    places: dict[int, int] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if not takes(leaf):
                return _of_no_kind(leaf)
            first = places.setdefault(id(leaf), len(tensors))
            if first < len(tensors):  # one object twice: its graph reads one of the two, and the model may ask for that
                kinds.append(first)
                form.append(first)
            else:
                kinds.append((leaf.shape, leaf.dtype))
                form.append((leaf.dim(), leaf.dtype))
            tensors.append(leaf)
        elif isinstance(leaf, PLAIN):
            kinds.append(plain_key(leaf))
            form.append(kinds[-1])
        else:
            return type(leaf).__name__
    return Signature(tuple(kinds), tuple(tensors), tuple(form)) if tensors else "no tensor"


def same_things(before: tuple[list[Any], Any], given: Any) -> bool:
    """Whether what is given holds what it held when it was flattened: no call has put another thing into a dict of it,
    a recurrent state say. An exported graph leaves that out."""
    leaves, spec = tree_flatten(given)
    return spec == before[1] and all(one is other for one, other in zip(leaves, before[0], strict=True))


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], Any]:
    """What is given, and how it is put together: quickly where nothing is."""
    if not kwargs and all(type(each) in _FLAT for each in args):
        return args, len(args)
    return tree_flatten((args, kwargs))


def _of_no_kind(tensor: torch.Tensor) -> str:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return type(tensor).__name__
    if tensor.numel() == 0:
        return "a tensor without elements"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device.type}"
    return f"a {str(tensor.layout if tensor.dtype in NUMERIC else tensor.dtype).removeprefix('torch.')} tensor"


def takes(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in NUMERIC
        and tensor.numel() > 0
        and not tensor.is_neg()
    )
