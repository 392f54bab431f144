"""Technique `tensorflow_allocator`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

_VARIABLES = {
    "growth": {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    "cuda_malloc_async": {"TF_GPU_ALLOCATOR": "cuda_malloc_async"},
}


class TensorflowAllocator(Technique):
    """Has TensorFlow take a GPU's memory as it needs it, or leave it to CUDA's own allocator.

    What it does: sets `TF_FORCE_GPU_ALLOW_GROWTH` or `TF_GPU_ALLOCATOR` before the process starts. By itself
    TensorFlow takes nearly all of a GPU's memory at its start.

    When it helps: several programs on one GPU; `cuda_malloc_async` where memory lies in pieces of the wrong size.

    When it hurts: memory that is taken piece by piece can fall into pieces. A program that sets memory growth itself,
    or a user who has set these variables, is left alone. Nothing of this has been measured on a GPU yet.

    What it watches: nothing. It is said before the process starts, and no result depends on it. What would escape: a
    program that asks how much of the GPU's memory is taken.

    Contract: exact. Only addresses change.

    Source: https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
    """

    name = "tensorflow_allocator"
    frameworks = ("keras",)
    contract = Contract.EXACT
    targets = ("forward", "backward", "optimizer")
    aims = ("time", "memory")
    order = 5
    knobs = (Knob("allocator", "growth", "who gives memory, and when", choices=tuple(_VARIABLES)),)

    def applies(self, facts: Facts) -> str | None:
        if elsewhere := facts.not_on_tensorflow():
            return elsewhere
        if facts.device != "cuda":
            return "there is no GPU at work"
        taken = [name for each in _VARIABLES.values() for name in each if name in os.environ]
        return f"{taken[0]} is set already" if taken else None

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"allocator": each} for each in ("cuda_malloc_async", "growth")]

    def environment(self, settings: Settings) -> dict[str, str]:
        return dict(_VARIABLES[str(settings["allocator"])])
