"""Seam *scalar read*: the program's own `tensor.item()`, `float(tensor)` and `int(tensor)`.

`f"{loss:.3f}"` comes here as well: torch asks `item` for it. A truth value (`if loss > 1`) does not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.scalar_read.wanted:
        for name in ("item", "__float__", "__int__"):
            patches.replace(torch.Tensor, name, _seen(hub, getattr(torch.Tensor, name)))
    return []


def _seen(hub: Seams, plain: Callable[..., Any]) -> Callable[..., Any]:
    kind = {"__float__": float, "__int__": int}.get(plain.__name__)

    @functools.wraps(plain)
    def read(self: torch.Tensor) -> Any:
        if torch.compiler.is_compiling():
            return plain(self)
        call = plain
        if self.requires_grad or self.numel() != 1:  # torch warns of the one, and refuses the other
            call = called_from(sys._getframe(1), plain)
        if not hub.scalar_read.subscribers or self.numel() != 1:
            return call(self)
        number = hub.scalar_read.run(self, lambda: call(self))
        return number if kind is None else kind(number)

    return read
