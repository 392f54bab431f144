"""Whether a program that makes no training step answers instead: calls its model, and never sends a loss backward.

It is told by what the program does, not by its source: by an optimizer's step or a loss sent backward (gradients of
variables that a `GradientTape` gives), or that there was neither until its end, or in so many seconds of calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import backend

_FEWEST_CALLS = 8  # while it goes on
# After which it is taken at its calls. A training program may evaluate first: its optimizer is there already, as a
# rule, and then it is waited for longer. One that steps later on is noticed (`InferenceClock.trains`). It was 20 s
# without an optimizer, too: of a tune of five minutes 12 more than tell.
_SECONDS, _WITH_OPTIMIZER = 8.0, 60.0


class AnsweringObserver:
    """An observer, for as long as no optimizer has stepped. `found` is told of calls that were enough."""

    def __init__(self, found: Callable[[], None]) -> None:
        self.calls = 0
        self._found = found
        self._began = 0.0
        self._optimizer_there = False
        self.trains = False  # a loss was sent backward, or an optimizer stepped
        self._seams: Seams | None = None

    @property
    def answers(self) -> bool:
        """Of all that was seen so far."""
        return self.calls > 0 and not self.trains

    def __call__(self, seams: Seams) -> None:
        self._seams = seams
        seams.optimizer_made.subscribe(self._made)
        seams.model_compiled.subscribe(self._compiled)
        seams.loss_backward.subscribe(self._sent_backward)
        seams.gradients_taped.subscribe(self._over)
        seams.step_ends.subscribe(self._over)
        seams.model_called.subscribe(self._called)
        seams.answer_called.subscribe(self._answer_called)

    def _made(self, optimizer: Any, models: list[Any]) -> None:
        self._optimizer_there = True

    def _compiled(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Of a Keras model. One that is loaded is compiled, too, and most that only answer are loaded."""
        from overdrive.seams.keras.models import being_loaded

        result = call(*args, **kwargs)
        if getattr(model, "optimizer", None) is not None and not being_loaded():
            self._optimizer_there = True
        return result

    def _sent_backward(self, loss: Any) -> Any:
        self._over()
        return loss

    def _over(self, *_: Any) -> None:
        if self.trains or self._seams is None:
            return
        self.trains = True
        seams = self._seams
        seams.model_called.unsubscribe(self._called)
        seams.answer_called.unsubscribe(self._answer_called)
        seams.loss_backward.unsubscribe(self._sent_backward)
        seams.gradients_taped.unsubscribe(self._over)
        seams.step_ends.unsubscribe(self._over)

    def _called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from overdrive.seams.torch import fetches
        from overdrive.seams.torch.modules import first_parameter

        result = call(*args, **kwargs)
        if fetches.under_way() or first_parameter(model) is None:
            return result
        # Keras's own calls are not followed. TensorFlow alone is imported by TensorBoard, too, or for its data.
        if self._seams is not None and "keras" in self._seams.frameworks and backend() == "torch":
            return result
        self._count()
        return result

    def _answer_called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Of a Keras model."""
        result = call(*args, **kwargs)
        self._count()
        return result

    def _count(self) -> None:
        self.calls += 1
        now = time.monotonic()
        self._began = self._began or now
        if self.calls >= _FEWEST_CALLS and now - self._began > (_WITH_OPTIMIZER if self._optimizer_there else _SECONDS):
            self._found()
