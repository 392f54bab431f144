"""Seam *part run*: calls that are one part of a step, or all of it.

Its kinds: "graph", a call of a compiled function that trains; "evaluation"; "data", where a loop of the program's own
waits for a batch; and "forward", "backward" and "optimizer", which are Python only where they run eagerly or while
they are traced. Enter it before the steps' own seam, whose looking on is no part of the program's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from overdrive.seams.hub import Seams
from overdrive.seams.keras.marks import TRAINS
from overdrive.seams.patch import Patches

Kind = Callable[..., str]  # of a call, by its arguments; "" where it is none of a step's parts


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.part_run.subscribers:
        return []
    trainer = next(each for each in Model.__mro__ if "fit" in vars(each))
    function = polymorphic_function.Function
    for holder, name, kind in (
        (BaseOptimizer, "apply", lambda *_, **__: "optimizer"),
        (LossScaleOptimizer, "apply", lambda *_, **__: "optimizer"),
        (tf.GradientTape, "gradient", lambda *_, **__: "backward"),
        (OwnedIterator, "__next__", lambda *_, **__: "data"),
        (trainer, "evaluate", lambda *_, **__: "evaluation"),
        (trainer, "predict", lambda *_, **__: "evaluation"),
        (Model, "__call__", _of_model),
        (function, "__call__", _of_function),
    ):
        patches.replace(holder, name, _around(hub, getattr(holder, name), kind))
    return []


def _of_model(*_: Any, **given: Any) -> str:
    if not tf.executing_eagerly():
        return ""  # what is traced and no other part is forward
    return "evaluation" if given.get("training") is False else "forward"


def _of_function(function: Any, *_: Any, **__: Any) -> str:
    return "graph" if tf.executing_eagerly() and getattr(function, TRAINS, False) else ""


def _around(hub: Seams, method: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    @functools.wraps(method)
    def around(thing: Any, *args: Any, **kwargs: Any) -> Any:
        part = kind(thing, *args, **kwargs)
        if not part:
            return method(thing, *args, **kwargs)
        return hub.part_run.run(part, functools.partial(method, thing), *args, **kwargs)

    return around
