"""Seam *state shown*: a `state_dict` of a model or an optimizer is about to be made, or it is copied or pickled whole.

Told once, of the outermost module. Not told where somebody reads parameters one by one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import Event


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.state_shown.wanted:
        for kind in (torch.nn.Module, torch.optim.Optimizer):
            for name in ("state_dict", "__getstate__"):
                patches.replace(kind, name, _told(hub.state_shown, getattr(kind, name)))
    return []


def _told(point: Event, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Within another module's it is given where to write; and what we look at goes nowhere.
        if "destination" not in kwargs and not sys._getframe(1).f_globals.get("__name__", "").startswith("overdrive."):
            point.publish(self)
        return plain(self, *args, **kwargs)

    return told
