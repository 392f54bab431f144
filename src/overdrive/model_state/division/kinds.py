"""Of which kind a call is: what it is given without samples, as far as a trial of another call does not hold for it."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from overdrive.seams.patch import plain_of
from overdrive.seams.torch.internals import writes_to

_HIDING = (0, 1)


def told_by_value(leaf: Any) -> Any:
    """Of an argument, what a call of the same kind has, too; the shapes of tensors are compared by who asks.

    Of numbers each would be a kind of its own, of which there are too many to try. But as a factor zero hides in a
    trial what it multiplies (a term of a loss in its first epoch), and so does one in `1 - a`.
    """
    if isinstance(leaf, torch.Tensor):
        if leaf.numel() != 1 or leaf.layout is not torch.strided or leaf.is_meta:
            return None
        return _hiding(_number_in(leaf))
    if isinstance(leaf, (int, str, bool, type(None))):
        return leaf
    return _hiding(leaf) if isinstance(leaf, (float, complex)) else None


def of_leaf(leaf: Any) -> Any:
    """Of an argument, all but how many there are along each of its dimensions."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dim(), leaf.dtype, leaf.requires_grad, told_by_value(leaf)
    return type(leaf), told_by_value(leaf)


def _number_in(tensor: torch.Tensor) -> Any:
    """On a GPU it is waited for: once for each tensor, and each time that it is written to."""
    item = plain_of(torch.Tensor.item)  # it is not the program that reads it
    if not tensor.is_cuda:
        return item(tensor)
    if torch.cuda.is_current_stream_capturing():
        return None
    place, writes = id(tensor), writes_to(tensor)
    known = _read.get(place)
    if known is None or known[0]() is not tensor or known[1] != writes:
        alive = weakref.ref(tensor, lambda _: _read.pop(place, None))
        known = _read[place] = alive, writes, item(tensor)
    return known[2]


_read: dict[int, tuple[weakref.ref[torch.Tensor], int, Any]] = {}  # from GPUs, by the tensor's id


def _hiding(number: Any) -> Any:
    return number if number in _HIDING else None
