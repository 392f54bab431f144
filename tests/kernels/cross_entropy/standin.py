"""The technique on the CPU: with the kernel in Triton's interpreter, or with torch in the kernel's place."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from overdrive.kernels.cross_entropy.comparison import CrossEntropy
from overdrive.kernels.cross_entropy.operator import Call
from overdrive.techniques.kernels import fast_cross_entropy


def on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """It takes the CPU for its GPU."""
    patch.setattr(fast_cross_entropy, "DEVICE", "cpu")
    patch.setattr(fast_cross_entropy, "_not_here", lambda: None)
    patch.setattr(fast_cross_entropy, "find_spec", lambda name: importlib.util.find_spec("torch"))


def by_torch(patch: pytest.MonkeyPatch, factor: float = 1.0) -> list[Call]:
    """Torch's operator is the kernel, in every bit, or a factor beside it. Returns: the calls that it gets."""
    on_the_cpu(patch)
    calls: list[Call] = []

    def computed(self: Any, call: Call) -> torch.Tensor:
        calls.append(call)
        given = call.logits, call.target, call.weight, call.reduction, call.ignored, call.smoothing
        loss = torch.ops.aten.cross_entropy_loss(*given)
        return loss if factor == 1 else loss * factor

    patch.setattr(CrossEntropy, "__call__", computed)
    patch.setattr(CrossEntropy, "differs_on", lambda self, plain, call: None)
    return calls
