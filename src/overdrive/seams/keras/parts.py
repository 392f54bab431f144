"""Seam *part run*: calls that are one part of a step, or all of it.

Its kinds: "graph", a call of a compiled function that trains; "evaluation"; "data", where a batch is waited for;
"forward", "backward" and "optimizer", which are Python only where they run eagerly or (TensorFlow) while they are
traced; and "watching", our own looking on. Which calls are which is each backend's own. Enter it before the steps' own
seam, whose looking on is no part of the program's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches

Kind = Callable[..., str]  # of a call, by its arguments; "" where it is none of a step's parts
Part = tuple[Any, str, Kind]  # holder and name of what is called


def always(kind: str) -> Kind:
    return lambda *_, **__: kind


def enter(hub: Seams, patches: Patches, parts: Iterable[Part]) -> None:
    if hub.part_run.wanted:
        for holder, name, kind in parts:
            patches.replace(holder, name, _around(hub, getattr(holder, name), kind))


def evaluations() -> list[Part]:
    trainer = next(each for each in Model.__mro__ if "fit" in vars(each))
    return [(trainer, name, always("evaluation")) for name in ("evaluate", "predict")]


def applications(kind: Kind) -> list[Part]:
    return [(holder, "apply", kind) for holder in (BaseOptimizer, LossScaleOptimizer)]


def _around(hub: Seams, call: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    @functools.wraps(call)
    def around(*args: Any, **kwargs: Any) -> Any:
        part = kind(*args, **kwargs)
        return hub.part_run.run(part, call, *args, **kwargs) if part else call(*args, **kwargs)

    return around
