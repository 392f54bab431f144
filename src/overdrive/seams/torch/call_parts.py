"""A model's call that is made in parts of its batch: whoever stands innermost is told of each part as of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overdrive.core.flag import FlagOfThread

in_parts = FlagOfThread()  # what is called in this thread is the next part of one call of the program's


def joined(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """What the leaves of these parts' arguments were before they were parted: rows one after the other, or the same."""
    return [_joined(each) for each in zip(*parts, strict=True)]


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if not isinstance(first, torch.Tensor) or not first.dim() or all(each is first for each in parts):
        return first
    return torch.cat([each.detach() for each in parts])
