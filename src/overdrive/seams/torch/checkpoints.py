"""Seam *call checkpointed*: a function is given to `torch.utils.checkpoint`, which calls it again in the backward pass.

A technique that has tensors exchanged, or settings changed, while a model is called sees to it here that the second
call finds the same. Below `checkpoint` itself, which programs and libraries have imported by its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches
from overdrive.seams.points import ENDS_A_CALL


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    # Raised as the last tensor that is asked for has been made again, which may be one of a technique's answer.
    ENDS_A_CALL.add(checkpoints._StopRecomputationError)
    if not hub.call_checkpointed.wanted:
        return []
    forward, begin = checkpoints.CheckpointFunction.forward, checkpoints._checkpoint_without_reentrant_generator

    def to_be_called(function: Any) -> Any:
        return function if torch.compiler.is_compiling() else hub.call_checkpointed.apply(function)

    @functools.wraps(forward)
    def of_reentrant(ctx: Any, function: Any, *rest: Any) -> Any:
        return forward(ctx, to_be_called(function), *rest)  # type: ignore[no-untyped-call]

    @functools.wraps(begin)
    def of_others(function: Any, *rest: Any, **how: Any) -> Any:
        return begin(to_be_called(function), *rest, **how)

    patches.replace(checkpoints.CheckpointFunction, "forward", staticmethod(of_reentrant))
    patches.replace(checkpoints, "_checkpoint_without_reentrant_generator", of_others)
    return []
