"""Compiles what the operator would launch, for a GPU that is not there: python -m ... CAPABILITY. Prints how many."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from overdrive.kernels import cross_entropy
from overdrive.kernels.cross_entropy import kernel, operator


class _There:
    """A driver of Triton's, of a GPU that launches nothing."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class _Compiled:
    def __init__(self, function: Any) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given, **named: made.append(self._function.warmup(*given, grid=grid, **named))


class _Kernels:
    forward, backward = _Compiled(kernel.forward), _Compiled(kernel.backward)


made: list[Any] = []
if __name__ == "__main__":
    driver.set_active(_There())
    cross_entropy.kernel = _Kernels  # type: ignore[attr-defined]
    for kind, weighted, reduction in itertools.product(operator.KINDS, (False, True), range(3)):
        x = torch.randn(32, 1000).to(kind).requires_grad_()
        weight = torch.rand(1000).to(kind) if weighted else None
        call = operator.Call(x, torch.arange(32), weight, -100, reduction, 0.1 * weighted, False)
        operator.computed(call).sum().backward()
    assert all("cubin" in each.asm for each in made)
    print(len(made))
