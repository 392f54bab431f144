"""Who takes hold of a tensor's memory by `data` or `numpy()`, where PyTorch does not count what is written to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.patch import Patches


def tell_raw_access(told: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """`told` is called with the tensor before each such access. Returns what ends it."""
    patches = Patches()
    data: Any = torch.Tensor.data

    def get(self: torch.Tensor) -> Any:
        told(self)
        return data.__get__(self)

    def put(self: torch.Tensor, value: Any) -> None:
        told(self)
        data.__set__(self, value)

    patches.replace(torch.Tensor, "data", property(get, put, data.__delete__, data.__doc__))
    plain: Any = torch.Tensor.numpy

    @functools.wraps(plain)
    def numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        told(self)
        return plain(self, *args, **kwargs)

    patches.replace(torch.Tensor, "numpy", numpy)
    return patches.restore
