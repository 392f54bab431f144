"""Compares two samples: equal in every bit, kind and stride."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np

from overdrive.forks.layout import Unfit

_BITS = struct.Struct("=d")  # of a float: 0.0 is not -0.0, and a NaN is itself


def same(one: Any, other: Any) -> bool:
    """Whether two samples are equal in every bit, kind and stride.

    Raises:
        Unfit: they hold something that cannot be compared.
    """
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in (tuple, list) or (isinstance(one, tuple) and hasattr(kind, "_fields")):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        looks = ("dtype", "shape", "strides")
        if any(getattr(one, each) != getattr(other, each) for each in looks):
            return False
        if one.dtype == object:
            return all(map(same, one.ravel().tolist(), other.ravel().tolist()))
        return bool(one.flags.writeable == other.flags.writeable and one.tobytes() == other.tobytes())
    torch, picture = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and isinstance(one, torch.Tensor):
        return _same_tensors(one, other, torch)
    if picture is not None and isinstance(one, picture.Image):
        alike = one.mode == other.mode and one.size == other.size and one.info == other.info
        return bool(alike and one.tobytes() == other.tobytes())
    if kind is float:
        return _BITS.pack(one) == _BITS.pack(other)
    if isinstance(one, np.generic):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if kind in (str, bytes, int, bool, type(None), complex) or one is other:
        return bool(one == other)
    if kind.__eq__ is not object.__eq__:  # type: ignore[comparison-overlap]
        return bool(one == other)
    raise Unfit(f"its samples hold a {kind.__module__}.{kind.__qualname__}, which cannot be compared")


def _same_tensors(one: Any, other: Any, torch: Any) -> bool:
    looks = ("dtype", "shape", "requires_grad", "layout", "device")
    if any(getattr(one, each) != getattr(other, each) for each in looks) or one.layout is not torch.strided:
        return False
    bits = [
        each.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        for each in (one, other)
    ]
    return bool(one.stride() == other.stride() and torch.equal(*bits))
