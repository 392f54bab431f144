"""Of which kind a call is: what it is given without samples, as far as a trial of another call does not hold for it."""

from __future__ import annotations

from typing import Any

import torch

from overdrive.seams.patch import plain_of

_HIDING = (0, 1)


def told_by_value(leaf: Any) -> Any:
    """Of an argument, what a call of the same kind has, too; the shapes of tensors are compared by who asks.

    Of numbers each would be a kind of its own, of which there are too many to try. But as a factor zero hides in a
    trial what it multiplies (a term of a loss in its first epoch), and so does one in `1 - a`.
    """
    if isinstance(leaf, torch.Tensor):
        if leaf.numel() != 1 or leaf.device.type != "cpu" or leaf.layout is not torch.strided:
            return None  # on a GPU it would be waited for
        return _hiding(plain_of(torch.Tensor.item)(leaf))  # it is not the program that reads it
    if isinstance(leaf, (int, str, bool, type(None))):
        return leaf
    return _hiding(leaf) if isinstance(leaf, (float, complex)) else None


def _hiding(number: Any) -> Any:
    return number if number in _HIDING else None
