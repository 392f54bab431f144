"""Seam *loss scaled*: a `GradScaler` of the program's multiplies a loss before it is sent backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.internals import unseen_by_modes


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.loss_scaled.wanted:
        return []
    plain = torch.amp.GradScaler.scale

    @functools.wraps(plain)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = plain(self, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            with unseen_by_modes():
                loss = outputs.detach()
            hub.loss_scaled.publish(loss, scaled)
        return scaled

    patches.replace(torch.amp.GradScaler, "scale", scale)
    return []
