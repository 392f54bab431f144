"""Seam *module cast*: a program asks for a module in another type (`model.float()`, `model.to(torch.float32)`).

Of one that has this type already, nothing else tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import Event

_TYPES = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}
_BY_ARGUMENT = ("to", "type")


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if hub.module_cast.wanted:
        for name in (*_TYPES, *_BY_ARGUMENT):
            plain = getattr(torch.nn.Module, name)
            patches.replace(torch.nn.Module, name, _told(hub.module_cast, plain, _TYPES.get(name)))
    return []


def _told(point: Event, plain: Callable[..., Any], dtype: torch.dtype | None) -> Callable[..., Any]:
    @functools.wraps(plain)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        if asked := dtype or _asked_for((*args, *kwargs.values())):
            point.publish(self, asked)
        return result

    return told


def _asked_for(arguments: tuple[Any, ...]) -> torch.dtype | None:
    """Among the arguments of `to` and `type`: a type, or a tensor of it; None where it is a device."""
    for each in arguments:
        if isinstance(each, (torch.dtype, torch.Tensor)):
            return each if isinstance(each, torch.dtype) else each.dtype
    return None
