"""Seam *tensor moved*: the program's own `tensor.to(device)` and `tensor.cuda()`.

Only plain copies between devices pass here. A call that also changes the dtype or the memory format, or asks for
a copy on the same device, parameters and subclasses (`nn.Module.to` among them) go straight to torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.tensor_moved.wanted:
        to, cuda = _seen(hub, torch.Tensor.to, _target_of_to), _seen(hub, torch.Tensor.cuda, _target_of_cuda)
        patches.replace(torch.Tensor, "to", to)
        patches.replace(torch.Tensor, "cuda", cuda)
        # Parameters of `LazyLinear` and the like refuse all functions but those in this list, before their first call.
        allowed = [*UninitializedTensorMixin._allowed_methods, to, cuda]
        patches.replace(UninitializedTensorMixin, "_allowed_methods", allowed)
    return []


def _seen(hub: Seams, plain: Callable[..., Any], target_of: Callable[..., torch.device | None]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(self) is not torch.Tensor or not hub.tensor_moved.subscribers or torch.compiler.is_compiling():
            return plain(self, *args, **kwargs)
        call = called_from(sys._getframe(1), plain)
        target = target_of(self, *args, **kwargs)
        if target is None or target == self.device:
            return call(self, *args, **kwargs)
        return hub.tensor_moved.run(self, lambda _: call(self, *args, **kwargs), target)

    return move


def _target_of_to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.device | None:
    """The device that a call of `to` asks for, where it asks for nothing else."""
    if "copy" in kwargs:
        return None
    try:
        # Torch's own reading of all ways to call `to`, which `nn.Module.to` uses as well.
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    except Exception:  # the plain call will say what is wrong with it
        return None
    if device is None or dtype not in (None, tensor.dtype) or memory_format not in (None, torch.preserve_format):
        return None
    return _numbered(device)


def _target_of_cuda(
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
    **unknown: Any,
) -> torch.device | None:
    if unknown or memory_format is not torch.preserve_format:
        return None
    try:
        wanted = torch.device("cuda") if device is None else torch.device(device)
    except Exception:
        return None
    return _numbered(wanted) if wanted.type == "cuda" else None


def _numbered(device: torch.device) -> torch.device:
    """`cuda` means the current one of its devices."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return device
