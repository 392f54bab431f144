"""Seam *loss computed*: PyTorch's functions for losses, as Python calls them (`F.cross_entropy`, `nn.MSELoss()`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import Answer

_ENDINGS = ("_loss", "cross_entropy", "_with_logits", "kl_div")


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.loss_computed.wanted:
        for name in dir(F):
            if name.endswith(_ENDINGS) and not name.startswith("_"):
                patches.replace(F, name, _seen(hub.loss_computed, name, getattr(F, name)))
    return []


def _seen(point: Answer, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if not point.subscribers or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        answer = point.ask(name, plain, args, kwargs)
        return plain(*args, **kwargs) if answer is None else answer

    return loss
