"""What calls of models left behind, of a program that trains nothing: in the place of losses and optimizers, the models
and their last answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overdrive.seams.answering import AnsweringModel
from overdrive.seams.batches import leading_size
from overdrive.seams.call_sizes import CallSizes

_MOST_MODELS = 8  # that are kept alive


class AnswersOfModels:
    """What is the same of all frameworks.

    Attributes:
        framework: by its name in `seams.frameworks`.
    """

    framework: str

    def _begin(self, losses: bool) -> None:
        self.samples = 0
        self.rates: list[float] = []
        self.optimizers: list[Any] = []
        self._with_losses = losses
        self._pending_samples = 0
        self._calls = 0
        self._sizes = CallSizes()
        self._answer: Any = None
        self._models: list[Any] = []  # kept alive, as optimizers are: a script's own are gone when its main() returns

    def _called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._sizes.given(args, kwargs)
        self._answer = None  # what the program has let go of takes no memory while the next is computed
        result = call(*args, **kwargs)
        given, made = leading_size([*args, *kwargs.values()]), leading_size(result)
        self._pending_samples = given if given == made else 0  # else its first dimension is not that of samples
        self._answer = self._alone(result) if self._with_losses else None
        return result

    def _alone(self, answer: Any) -> Any:
        """An answer without all else that it keeps alive."""
        return answer

    def stepped(self, optimizer: Any, ticked: bool) -> bool:
        if not isinstance(optimizer, AnsweringModel) or optimizer.framework != self.framework:
            return False
        if all(known is not optimizer for known in self.optimizers):
            self.optimizers = [*self.optimizers, optimizer][-_MOST_MODELS:]
            if self._with_losses:
                self._models = [each.model() for each in self.optimizers]
        if ticked:
            self.samples += self._pending_samples
            self._calls += 1
            self._sizes.counted()
        return True

    def call_sizes(self) -> dict[str, int]:
        return self._sizes.by_size()

    def losses(self) -> list[list[float]]:
        return [[] for _ in range(self._calls)]
