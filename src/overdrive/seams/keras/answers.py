"""Seam *answer called*: calls of Keras's models that answer, and the steps that they are (see `seams.answering`).

Its kinds: "predict", a batch that `predict` or `predict_on_batch` has the model's predict function answer; and "call",
an eager call of the model itself. A call while a function is traced, or within another one, is a part of that.
`GradientTape`s and calls that are told to train are training's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras.src.models.model import Model

from overdrive.core.flag import FlagOfThread
from overdrive.seams.answering import Answers
from overdrive.seams.hub import Seams
from overdrive.seams.keras.functions import Functions
from overdrive.seams.patch import Patches

PREDICT, CALL = "predict", "call"
Eager = Callable[[], bool]  # whether what runs now runs eagerly, and no gradient is recorded


def enter(hub: Seams, patches: Patches, trainer: Any, eager: Eager) -> list[Callable[[], None]]:
    """`trainer`: the backend's class that makes predict functions."""
    if not (hub.inference or hub.answer_called.wanted):
        return []
    watch = _Watch(hub, eager)
    functions = Functions(trainer, watch.function, kinds=("predict",))
    functions.enter(patches)
    patches.replace(Model, "__call__", watch.calling(Model.__call__))
    return [functions.leave]


class _Watch:
    def __init__(self, hub: Seams, eager: Eager) -> None:
        self._hub = hub
        self._eager = eager
        self._answers = Answers(hub, "keras", lambda model: list(model.variables)) if hub.inference else None
        self._inside = FlagOfThread()  # a call of a model

    def function(self, model: Any, kind: str, made: Callable[..., Any]) -> Callable[..., Any]:
        """What is called instead of a predict function."""
        return functools.partial(self._run, model, PREDICT, made)

    def calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:
            trains, within = kwargs.get("training"), bool(self._inside)
            if trains or within or not self._eager() or is_symbolic(args, kwargs):
                return call(model, *args, **kwargs)
            return self._run(model, CALL, functools.partial(call, model), *args, **kwargs)

        return __call__

    def _run(self, model: Any, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return call(*args, **kwargs)
        with self._inside:
            # One that its first call builds has no variables yet.
            step = self._answers.begins(model) if self._answers and model.built else None
            result = self._hub.answer_called.run((model, kind), call, *args, **kwargs)
        if self._answers and step:
            self._answers.ended(step)
        return result


def is_symbolic(*given: Any) -> bool:
    """Whether the call only joins a model or a layer to others."""
    return any(isinstance(each, keras.KerasTensor) for each in keras.tree.flatten(given))
