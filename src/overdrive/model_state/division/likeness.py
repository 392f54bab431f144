"""Whether the results of parts make up that of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest value
_LOOSEST = 2e-2  # of 16 bits


_PLAIN = (int, float, str, bool, type(None), type, torch.dtype, torch.device, torch.layout, torch.Size)

SUMMED = (-1, 0)  # in the place of a dimension: the parts' sum is the whole


class Refused(Exception):
    """The call cannot be divided; the message is the reason, for people."""


def joined(
    parts: Sequence[Any], whole: Any, sizes: Sequence[int], rows: int, sums: bool = False
) -> tuple[int, int] | None:
    """Along which dimension, and how many a sample; None where all are the same.

    Args: `sums`: it may also be `SUMMED`.

    Raises:
        Refused: they do not.
    """
    if not isinstance(whole, torch.Tensor):
        if isinstance(whole, _PLAIN) and all(each == whole for each in parts):
            return None
        if all(each is whole for each in parts):  # the model's own, say
            return None
        if isinstance(whole, torch.Size):
            return _joined_shapes(parts, whole, sizes, rows)
        raise Refused(f"it returns a {type(whole).__name__}, which cannot be put together")
    if all(each.shape == whole.shape for each in parts):
        if all(alike(each, whole) for each in parts):
            return None
        if sums and whole.is_floating_point() and _is_sum(parts, whole):
            return SUMMED
        raise Refused("it makes one value of the whole batch")
    dims = [dim for dim in range(whole.dim()) if parts[0].shape[dim] != whole.shape[dim]]
    if len(dims) != 1 or whole.shape[dims[0]] % rows:
        raise Refused(f"it returns a tensor of shape {tuple(whole.shape)}, not so many rows a sample")
    dim, per_row = dims[0], whole.shape[dims[0]] // rows
    if any(each.shape[dim] != per_row * size for each, size in zip(parts, sizes, strict=True)):
        raise Refused(f"it returns a tensor of shape {tuple(whole.shape)}, not so many rows a sample")
    together = torch.cat(list(parts), dim)
    if together.shape != whole.shape or not alike(together, whole):
        raise Refused("what it makes of a sample depends on the rest of its batch")
    return dim, per_row


def _joined_shapes(parts: Sequence[Any], whole: torch.Size, sizes: Sequence[int], rows: int) -> tuple[int, int]:
    for dim, size in enumerate(whole):
        per_row, rest = divmod(size, rows)
        shapes = [torch.Size((*whole[:dim], per_row * each, *whole[dim + 1 :])) for each in sizes]
        if not rest and shapes == [*parts]:
            return dim, per_row
    raise Refused(f"it returns a shape, {tuple(whole)}, that is not that of its parts")


def _is_sum(parts: Sequence[torch.Tensor], whole: torch.Tensor) -> bool:
    """A part that is zero shows nothing: the largest of all would be such a sum, too."""
    return all(bool(each.any()) for each in parts) and alike(torch.stack([*parts]).sum(0), whole)


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not other.is_floating_point():
        return bool(torch.equal(one, other))
    return near(one, other, tolerance(other.dtype))


def near(one: torch.Tensor, other: torch.Tensor, most: float) -> bool:
    """Whether they differ by no more than this share of the other's largest number."""
    one, other = one.double(), other.double()
    finite = other[other.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=most * size, equal_nan=True)


def tolerance(kind: torch.dtype) -> float:
    """How far apart numbers of this type may be, where the largest of them is one."""
    return _TOLERANCE.get(kind, _LOOSEST)
