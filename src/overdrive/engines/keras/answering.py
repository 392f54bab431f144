"""Calls of Keras's models on TensorFlow that something else makes in their place, wherever that was proved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from overdrive.engines.answers import BUSY, Answer, Answers
from overdrive.engines.keras.model import AnsweredModel, Maker

_MOST_MODELS = 8  # that are kept alive, with what their layers held


class KerasAnswers(Answers):
    """Of one session."""

    def __init__(self, maker: Maker, name: str, early: Callable[[], object] = lambda: None) -> None:
        super().__init__(name, early)
        self._maker = maker
        self._models: dict[int, AnsweredModel] = {}  # by id, the oldest first
        self._busy = threading.Lock()

    def refusals(self) -> Sequence[str]:
        return [each.refused for each in self._models.values()]

    def called(self, subject: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *answer called*."""
        model, kind = subject
        if kind not in self._maker.kinds:
            return call(*args, **kwargs)
        if tf.distribute.has_strategy() or model.distribute_strategy is not tf.distribute.get_strategy():
            return self.noted(Answer(call(*args, **kwargs), "the model is spread over devices"))
        if not self._maker.one_at_a_time:
            return self.noted(self._known(model).answer(kind, call, args, kwargs))
        if not self._busy.acquire(blocking=False):
            return self.noted(Answer(call(*args, **kwargs), BUSY))
        try:
            return self.noted(self._known(model).answer(kind, call, args, kwargs))
        finally:
            self._busy.release()

    def _known(self, model: Any) -> AnsweredModel:
        known = self._models.get(id(model))
        if known is None:
            if len(self._models) >= _MOST_MODELS:
                self._models.pop(next(iter(self._models)), None)
            known = self._models[id(model)] = AnsweredModel(model, self._maker)
        return known
