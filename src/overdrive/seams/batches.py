"""Looks into batches of any structure, of any framework."""

from __future__ import annotations

from typing import Any


def leading_size(batch: Any) -> int:
    """The first dimension of the first tensor in a batch of any structure; 0 where there is none."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return int(batch.shape[0]) if len(batch.shape) else 1
    if hasattr(batch, "values"):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for each in batch:
            if size := leading_size(each):
                return size
    return 0
