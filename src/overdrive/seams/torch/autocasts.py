"""Seam *autocast entered*: wherever the program, or a library on its behalf, computes under an autocast of its own.

By `with torch.autocast(...)`, a decorator, `torch.cuda.amp`, Accelerate (which wraps `forward`), Lightning or
the HF Trainer: all of them enter the one class that is patched here. What a backward pass enters is not told of: a
checkpoint, or a function's own backward, puts in force again what was in force in the forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.torch.internals import in_backward

_QUIET = "overdrive_quiet"  # set on a technique's own


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.autocast_entered.wanted:
        return []
    plain = torch.autocast.__enter__

    @functools.wraps(plain)
    def __enter__(self: Any) -> Any:
        told = self._enabled and _QUIET not in vars(self) and not torch.compiler.is_compiling()
        if told and not in_backward():
            hub.autocast_entered.publish(self)
        return plain(self)  # type: ignore[no-untyped-call]

    patches.replace(torch.autocast, "__enter__", __enter__)
    return []


def quiet(kind: str, dtype: torch.dtype, **how: bool) -> torch.autocast:
    """An autocast of a technique, of which the seam does not tell. `how`: as `torch.autocast` has it."""
    autocast = torch.autocast(kind, dtype=dtype, **how)
    setattr(autocast, _QUIET, True)
    return autocast
