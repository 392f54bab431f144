"""An engine's answers in one session. Imports no framework: techniques are installed before there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.engines.runtime import Runtime

if TYPE_CHECKING:
    from overdrive.core.facts import Facts
    from overdrive.engines.answering import EngineAnswers


def of_no_use(runtime: Runtime, facts: Facts) -> str | None:
    """Why engines of this library cannot help here, or None."""
    if facts.device != "cpu":
        return "the model is on the GPU"
    if facts.own_compile:
        return "the program compiles its model itself"
    return runtime.missing()


class Answering:
    """What a technique subscribes, and keeps as the notes of its handle.

    Attributes:
        answers: None before the model's first call.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.answers: EngineAnswers | None = None
        self._runtime = runtime
        self._name = name

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""
        if self.answers is None:
            from overdrive.engines.answering import EngineAnswers

            self.answers = EngineAnswers(self._runtime, self._name)
        return self.answers.called(model, call, *args, **kwargs)

    def in_vain(self) -> str:
        """Why no engine will answer, in words; empty where one may."""
        return self.answers.in_vain() if self.answers else ""

    def told(self) -> str:
        """How often it answered, for people."""
        return self.answers.told() if self.answers else f"{self._name} was not asked: no model was called"
