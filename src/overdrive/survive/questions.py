"""What the program asks of tensors, noted the first time, and answered from the journal when it is made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.survive import answers
from overdrive.survive.journal import Diverged
from overdrive.survive.journaled_run import next_entry
from overdrive.survive.ours import asked_by_technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Seams
    from overdrive.survive.batches import Batches
    from overdrive.survive.fetched import FetchQuestions
    from overdrive.survive.journaled_run import JournaledRun


class Questions:
    def __init__(self, run: JournaledRun, fetched: Batches | FetchQuestions) -> None:
        """`fetched`: has what fetches of samples ask, which the journal has with their batches."""
        self._run, self._fetched = run, fetched
        self._told = answers.Told()

    def follow(self, seams: Seams) -> None:
        seams.value_asked.subscribe(self._run.guarded(self._value_asked))
        seams.shape_asked.subscribe(self._run.guarded(self._shape_asked))

    def next(self, kind: str, told: str) -> Any:
        return next_entry(self._run, kind, told, f"at step {self._run.steps}, ")

    def answer(self, kind: str, told: str) -> Any:
        """The entry that answers this question; None where the thing itself is to."""
        try:
            within, entry = self._fetched.answer(kind)
        except Diverged as error:
            self._run.begin_anew(str(error))
        if within:
            return entry
        return self.next(kind, told)

    def note(self, *entry: Any) -> None:
        if not self._fetched.note(*entry):
            self._run.journal.add(*entry)

    def _value_asked(self, subject: Any, call: Callable[[], Any]) -> Any:
        if self._run.aside() or asked_by_technique():
            return call()
        name, tensor = subject
        if self._run.replaying:
            entry = self.answer("value", f"the value of a tensor ({name})")
            return call() if entry is None else answers.given(entry[1], tensor, call)
        self._run.inside = True
        try:
            value = call()
        finally:
            self._run.inside = False
        try:
            self.note("value", self._told(value))
        except answers.TooMuch as error:
            self._run.cannot_skip(str(error))
        return value

    def _shape_asked(self, subject: Any, call: Callable[[], Any]) -> Any:
        if self._run.aside() or asked_by_technique():
            return call()
        if not self._run.replaying:
            result = call()
            self.note("shapes", answers.shapes(result))
            return result
        entry = self.answer("shapes", f"a shape that depends on a tensor's values ({subject[0]})")
        return call() if entry is None else answers.of_shapes(call(), entry[1])
