"""What an engine's answers of one session come to, whatever the framework: how many there were, and why not more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.core.progress import log
from overdrive.core.units import listed_some

_TELLING = 8  # calls, after which a program has called all of its models

BY_BOTH = "made by both and compared"
GATHERED = "its inputs were gathered, for the ranges of values in the model"
CHANGED = "the model was changed"
NEW = "a shape of inputs that is new"
OF_NO_KIND = "an input of a kind that no engine takes"
FORKED = "a process that was forked has none of the engine's threads"
ITS_OWN = "an input is one of the model's own tensors"
NOT_FINITE = "an input holds NaN or infinity"
HOOKED = "the program has hooks on the model"
OF_INPUTS = "gradients of its inputs are recorded"
OUTSIDE = "values of inputs that were not compared"
BUSY = "another thread is being answered"
CHANGES_ALWAYS = "the model changes from call to call"


@dataclass(frozen=True)
class Answer:
    result: Any
    left: str = ""  # why the model itself was called; empty where the engine answered
    settles: bool = False  # the engine of such calls is not there yet, or not proved
    early: bool = False  # it took the time of both, as at the beginning of a run alone (see `engines.tally`)


class Answers:
    """Counts them.

    Attributes:
        answered: calls that an engine answered.
        left: those that it left to the model, by reason.
        settling: how many of these were before the engine of such calls was there, and proved.
        within: by class, calls of modules within those, and how many of them an engine answered.
    """

    def __init__(self, name: str, early: Callable[[], object] = lambda: None) -> None:
        """`early`: called within a call that is made by both at the beginning of a run alone."""
        self.answered = 0
        self.left: Counter[str] = Counter()
        self.settling = 0
        self.within: dict[str, list[int]] = {}
        self._name = name
        self._early = early

    def told(self) -> str:
        """How often it answered, and why not more often, for people."""
        calls = self.answered + self.left.total()
        said = f"{self._name} answered {self.answered:,} of {calls:,} calls"
        most = self.left.most_common(3)
        if most:
            said += f"; the model itself the others: {', '.join(f'{why} ({n:,})' for why, n in most)}"
        of_modules = [f"{n:,} of {all_:,} calls of {kind}" for kind, (all_, n) in self.within.items() if n]
        return f"{said}; within these it answered {listed_some(of_modules)}" if of_modules else said

    def in_vain(self) -> str:
        """Why it has answered nothing and will not, in words; empty where it may yet."""
        if self.answered or any(n for _, n in self.within.values()) or self.left.total() < _TELLING:
            return ""
        reasons = self.refusals()
        if not reasons and len({each.partition(" (")[0] for each in self.left}) == 1:
            return next(iter(self.left))  # no call was of a kind that is looked at more closely
        return reasons[0] if reasons and all(reasons) else ""

    def refusals(self) -> Sequence[str]:
        """Of each model that was looked at, why no engine answers for it; empty where one does or may."""
        return ()

    def called(self, subject: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A subscriber of the seam at which a framework's models are called."""
        raise NotImplementedError

    def noted_within(self, kind: str, answer: Answer) -> Any:
        """The result of a call of a module of this class, within one of a model."""
        if answer.early:
            self._early()
        counts = self.within.setdefault(kind, [0, 0])
        counts[0] += 1
        counts[1] += not answer.left
        return answer.result

    def noted(self, answer: Answer) -> Any:
        """The call's result, once it is counted."""
        if answer.early:
            self._early()
        if answer.left:
            if answer.left not in self.left:
                log.info("%s leaves a call to the model: %s", self._name, answer.left)
            self.left[answer.left] += 1
            self.settling += answer.settles
        else:
            self.answered += 1
        return answer.result
