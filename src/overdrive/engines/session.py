"""An engine's answers in one session. Imports no framework: techniques are installed before there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from overdrive.engines.looking import in_vain
from overdrive.engines.runtime import OfTensorFlow, Runtime

if TYPE_CHECKING:
    from overdrive.core.facts import Facts
    from overdrive.engines.answering import EngineAnswers
    from overdrive.engines.answers import Answers
    from overdrive.seams.hub import Seams


def of_no_use(runtime: Runtime, facts: Facts, own: Mapping[str, Any]) -> str | None:
    """Why engines of this library cannot help here, or None. `own`: what `look_at_calls` found out."""
    if facts.device != "cpu":
        return "the model is on the GPU"
    if facts.framework == "keras":  # what Keras compiles of its own accord lies around the call that is answered
        return runtime.missing() if facts.backend in ("", "tensorflow") else f"Keras runs on {facts.backend} here"
    if facts.own_compile:
        return "the program compiles its model itself"
    return runtime.missing() or in_vain(own) or None


class Answering:
    """What a technique subscribes, and keeps as the notes of its handle."""

    def __init__(self, runtime: Runtime, name: str, seams: Seams, of_keras: OfTensorFlow | None = None) -> None:
        """`of_keras`: answers calls of Keras's models on TensorFlow; without it these are left alone."""
        self._answers: dict[str, Answers] = {}  # by framework; none before a model's first call
        self._of_torch: EngineAnswers | None = None
        self._runtime = runtime
        self._of_keras = of_keras
        self._name = name
        self._seams = seams
        self._early = seams.call_doubled.publish

    @property
    def answers(self) -> Answers | None:
        """Those of the framework whose model was called first; None before that."""
        return next(iter(self._answers.values()), None)

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam *model called*."""
        if self._of_torch is None:
            from overdrive.engines.answering import EngineAnswers
            from overdrive.seams.torch.models import follow_forward

            follow = partial(follow_forward, self._seams)
            self._answers["torch"] = self._of_torch = EngineAnswers(self._runtime, self._name, self._early, follow)
        return self._of_torch.called(model, call, *args, **kwargs)

    def submodule_called(self, module: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam of that name, which is told of what `called` has named."""
        if self._of_torch is None:
            return call(*args, **kwargs)
        return self._of_torch.submodule_called(module, call, *args, **kwargs)

    def answer_called(self, subject: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam of that name."""
        if self._of_keras is None:
            return call(*args, **kwargs)
        if "keras" not in self._answers:
            from overdrive.engines.keras.answering import KerasAnswers
            from overdrive.engines.keras.engine import Engines

            self._answers["keras"] = KerasAnswers(Engines(self._of_keras), self._name, self._early)
        return self._answers["keras"].called(subject, call, *args, **kwargs)

    def in_vain(self) -> str:
        """Why no engine will answer, in words; empty where one may."""
        reasons = [each.in_vain() for each in self._answers.values()]
        return reasons[0] if reasons and all(reasons) else ""

    @property
    def settling(self) -> int:
        """Calls so far in which it did not answer yet, and later may."""
        return sum(each.settling for each in self._answers.values())

    def told(self) -> str:
        """How often it answered, for people."""
        said = "; ".join(each.told() for each in self._answers.values())
        return said or f"{self._name} was not asked: no model was called"
