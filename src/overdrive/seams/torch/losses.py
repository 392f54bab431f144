"""Seam *loss computed*: PyTorch's functions for losses, as Python calls them (`F.cross_entropy`, `nn.MSELoss()`)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.place import called_from
from overdrive.seams.points import Answer
from overdrive.seams.torch.scripted import scripted_alike

_ENDINGS = ("_loss", "cross_entropy", "_with_logits", "kl_div")


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers: list[Callable[[], None]] = []
    for name in dir(F) if hub.loss_computed.wanted else ():
        if name.endswith(_ENDINGS) and not name.startswith("_"):
            plain = getattr(F, name)
            seen = _seen(hub.loss_computed, name, plain)
            patches.replace(F, name, seen)
            removers.append(scripted_alike(seen, plain))
    return removers


def _seen(point: Answer, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if not point.subscribers or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        answer = point.ask(name, plain, args, kwargs)
        # Some warn, of shapes that differ, say: of the line that calls them.
        return called_from(sys._getframe(1), plain)(*args, **kwargs) if answer is None else answer

    return loss
