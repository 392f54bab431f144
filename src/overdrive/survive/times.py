"""The times that a program and its libraries ask for, noted the first time, and told again when it is made again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overdrive.survive.journal import TIME_IN_LIBRARY

if TYPE_CHECKING:
    from overdrive.survive.journaled_run import JournaledRun

_TIMES_OF_A_LINE = 4  # that are noted of a library's


class Times:
    def __init__(self, run: JournaledRun, answer: Callable[[str, str], Any], note: Callable[..., None]) -> None:
        """
        Args:
            answer: the journal's entry of a kind, for a question that is told so; None where the clock is to answer.
            note: takes an entry.
        """
        self._run, self._answer, self._note = run, answer, note
        self._of_libraries: defaultdict[str, list[float]] = defaultdict(list)

    def time(self, plain: Callable[[], Any], noted: Callable[[], Any]) -> Any:
        if self._run.beside():
            return plain()
        value = noted()
        if self._run.aside():
            return value
        if self._run.replaying:
            entry = self._answer("time", "the time")
            return value if entry is None else entry[1]
        self._note("time", value)
        return value

    def in_library(self, line: str, now: Callable[[], float]) -> float:
        """What a line of a library's is told: the first of its times are the same again, whatever was asked between.

        Only the first: a bar that tells when it will be over asks as often as it is drawn.
        """
        value = now()  # also where it is known: a clock that counts its times goes on as in the first run
        if self._run.aside():
            return value
        told = self._of_libraries[line]
        if len(told) < _TIMES_OF_A_LINE:
            known = self._run.journal.times.get(line, ())
            told.append(known[len(told)] if len(told) < len(known) else value)
            if not self._run.replaying:
                self._run.journal.add(TIME_IN_LIBRARY, line, told[-1])
            return told[-1]
        return value
