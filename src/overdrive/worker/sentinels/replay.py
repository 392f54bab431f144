"""One step that is made again, from its fork to what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.core.contract import Contract
from overdrive.worker.sentinels.processes import Keeper, Told, Way

_MOST_SUSPECTS = 6  # techniques that are tried one by one


class Replay:
    """Compares the program's step with copies of it, and orders more of them as long as they are needed.

    Attributes:
        keeper: of the copies; None in these.
        losses: sent backward in this step.
        mine: what the program came to; None until its step ends.
        difference: the first thing that came out otherwise, in words.
        unlike: the same of the step made again as it was, where that differs.
        culprits: techniques without which the step comes out as it does without all.
        failed: why nothing can be said.
    """

    def __init__(self, subject: Any, off: Sequence[str], levels: Mapping[str, Contract]) -> None:
        self.keeper: Keeper | None = None
        self.step = 0
        self.losses: list[str] = []
        self.mine: dict[str, str] | None = None
        self.difference = self.unlike = self.failed = ""
        self.culprits: list[str] = list(off)
        self.in_program = 0.0  # seconds that it took the program
        self.first = Way(tuple(off))
        self._subject = subject
        self._plain: dict[str, str] = {}  # what the step comes to without all of them
        self._suspects = list(off) if 1 < len(off) <= _MOST_SUSPECTS else []

    def picture(self, where: str) -> dict[str, str]:
        """What this process came to."""
        return {"the loss": " ".join(self.losses), **self._subject.bits(), "the place": where}

    def look(self) -> bool:
        """Take in what was told; whether all is known."""
        if self.mine is None or self.keeper is None:
            return False
        told = self.keeper.told()
        if told is None:
            self.failed = "the processes in which it was made ended"
            return True
        return any(self._take(each) for each in told)

    def _take(self, told: Told) -> bool:
        assert self.mine is not None and self.keeper is not None
        if told.failed:
            self.failed = told.failed
            return True
        if not self.mine["the loss"]:
            self.failed = "no loss was sent backward"
            return True
        off = tuple(told.way.off)
        if off == self.first.off:
            self.difference = first_difference(self.mine, told.found)
            self._plain = told.found
            if not self.difference:
                return True
            return self._order(Way(()))
        if not off:
            self.unlike = first_difference(self.mine, told.found)
            if self.unlike:
                return True
        elif not first_difference(self._plain, told.found):
            self.culprits = list(off)
            return True
        if self._suspects:
            return self._order(Way((self._suspects.pop(0),)))
        return True

    def _order(self, way: Way) -> bool:
        assert self.keeper is not None
        self.keeper.order(way)
        return False


def first_difference(mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first thing that is not the same in every bit; "" where all is."""
    for name in (*mine, *other):
        if mine.get(name) != other.get(name):
            return name
    return ""
