"""An engine's answers in one session. Imports no framework: techniques are installed before there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.engines.runtime import Runtime

if TYPE_CHECKING:
    from overdrive.engines.answering import Answers


class Answering:
    """What a technique subscribes, and keeps as the notes of its handle.

    Attributes:
        answers: None before the model's first call.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.answers: Answers | None = None
        self._runtime = runtime
        self._name = name

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""
        if self.answers is None:
            from overdrive.engines.answering import Answers

            self.answers = Answers(self._runtime, self._name)
        return self.answers.called(model, call, *args, **kwargs)

    def told(self) -> str:
        """How often it answered, for people."""
        return self.answers.told() if self.answers else f"{self._name} was not asked: no model was called"
