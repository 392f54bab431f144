"""Which tensors a kernel can read as they lie in the memory."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

_KINDS = (torch.Tensor, torch.nn.Parameter)


def of_floats(x: Any) -> TypeGuard[torch.Tensor]:
    """Whether it is a tensor of 32-bit floats on the CPU, no subclass, with strides, and not negated lazily."""
    return (
        type(x) in _KINDS
        and x.dtype is torch.float32
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and not x.is_neg()
    )
