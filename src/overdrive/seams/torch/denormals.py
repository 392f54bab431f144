"""Counts denormal numbers: those nearer to zero than the smallest normal one of their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MOST = 1 << 18  # numbers of a tensor: a program near the end of its memory has no place for copies of all of it


class Denormals(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Attributes: `numbers`, all that were looked at; `denormal`, those of them.

    While it is entered it looks at what every operation below autograd results in, at evenly spaced numbers of large
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = self.denormal = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            self.look_at(each)
        return result

    def look_at(self, tensor: Any) -> None:
        """Of other things than dense tensors of floating point numbers on the CPU nothing is counted."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.is_cpu:
            return
        if tensor.layout is not torch.strided or not tensor.numel():
            return
        with torch.no_grad():
            size = _spaced(tensor.detach()).abs()
            found = (size > 0) & (size < torch.finfo(tensor.dtype).tiny)
            self.denormal += int(found.sum())
        self.numbers += size.numel()


def _spaced(tensor: torch.Tensor) -> torch.Tensor:
    """A view of it, of every so many along its longest side."""
    step = -(-tensor.numel() // _MOST)
    if step == 1:
        return tensor
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    every = (slice(None),) * longest + (slice(None, None, step),)
    return tensor[every]
