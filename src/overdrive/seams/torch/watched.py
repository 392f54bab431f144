"""A tensor that remembers which functions it was given to."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_ATTRIBUTE = "overdrive_uses"
_ASKING = frozenset(
    {getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda")}
    | {getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "stride", "is_contiguous", "__len__")}
)  # these are not noted


class Watched(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watched = [tensor for tensor in tree_leaves((args, kwargs)) if type(tensor) is Watched]
        for tensor in watched:
            tensor.__class__ = torch.Tensor  # type: ignore[assignment]
            if func not in _ASKING:
                getattr(tensor, _ATTRIBUTE).append(func)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            for tensor in watched:
                tensor.__class__ = Watched


def watch(tensor: torch.Tensor, uses: list[Any]) -> None:
    """From here on what the tensor is given to is appended to `uses`."""
    tensor.__class__ = Watched
    setattr(tensor, _ATTRIBUTE, uses)


def unwatch(tensor: torch.Tensor) -> None:
    if type(tensor) is Watched:
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]
        delattr(tensor, _ATTRIBUTE)
