"""Seam *gradients zeroed*: `zero_grad` of optimizers and of modules.

Gradients that a program zeroes by hand (`parameter.grad.zero_()`) do not pass here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.gradients_zeroed.wanted:
        for holder in (torch.optim.Optimizer, torch.nn.Module):
            patches.replace(holder, "zero_grad", _seen(hub, holder.zero_grad))
    return []


def _seen(hub: Seams, plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if is_compiling():
            plain(self, set_to_none)
            return
        if hub.gradients_zeroed.answered_ahead(self, (set_to_none,), {}) is None:
            hub.gradients_zeroed.run(self, lambda set_to_none: plain(self, set_to_none), set_to_none)

    return zero_grad
