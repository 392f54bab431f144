"""Which candidates a screening still switches within processes, and why the others are not switched any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from overdrive.evidence.screening import Design, Row, labels_of, row_with
from overdrive.tuner.process_rows import ProcessRows

_MOST_FAILURES = 4  # candidates that fail, each of which costs a process


class Racers:
    """
    Attributes:
        active: labels that are still switched, placebos among them.
        failed: why, of each with which a process died.
        left_out: what left itself out, with the reason.
        apart: what is not screened, since all together died at their start, or some of them later on.
    """

    def __init__(self, design: Design, around: ProcessRows) -> None:
        """`around`: what distinguishes the processes."""
        self.active = set(labels_of(design.factors))
        self.failed: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.apart: set[str] = set()
        self._factors = design.factors
        self._around = around
        self._careful = False  # a process died, and it is not known with which
        self._deadly: list[set[str]] = []  # what was on where processes died, as far as no one alone is to blame
        self._halves: list[list[str]] | None = None  # that are yet to be tried, where all together died at their start

    def racing(self) -> list[str]:
        candidates = labels_of(each for each in self._factors if not each.placebo)
        return [label for label in candidates if label in self.active]

    def leave(self, left_out: Mapping[str, str]) -> None:
        """These have left themselves out."""
        self.left_out = {**left_out, **self.left_out}
        self.active -= set(left_out)
        self._around.leave(left_out)

    def one_by_one(self) -> Sequence[Row]:
        """Rows with one candidate each, where a process died with one of many."""
        if not self._careful:
            return ()
        return [row_with(label, self._factors) for label in self.racing()]

    def blame(
        self, around: Collection[str], on: Collection[str], reason: str, lived: Sequence[Collection[str]]
    ) -> bool:
        """A process died with these on; whether another may go on: without the one, or to find out which it was.

        Args:
            lived: what was on in each block that was measured, of this or an earlier process.
        """
        if not on:  # before anything was switched
            return self._with_fewer(around, bool(lived))
        suspects = [name for name in on if name in self.racing()]
        if len(suspects) == 1:
            self.failed[suspects[0]] = reason
            self.active.discard(suspects[0])
            self._deadly = [each for each in self._deadly if suspects[0] not in each]
            return len(self.failed) < _MOST_FAILURES
        self._deadly.append(set(suspects))
        careful, self._careful = self._careful, True
        return self._kept_apart(lived) if careful else bool(suspects)

    def _kept_apart(self, lived: Sequence[Collection[str]]) -> bool:
        """Each of them lives alone, and some do not together: of those that were on in all these deaths only such go on
        as were on with each other in a block, one at least, and the others have duels of their own. Whether there are
        any."""
        common = set.intersection(*self._deadly)
        together, parted = list[str](), set[str]()
        for name in self.racing():
            if name in common and all(any({name, each} <= set(on) for on in lived) for each in together):
                together.append(name)
            elif name in common:
                parted.add(name)
        self.apart |= parted
        self.active -= parted
        return bool(parted) and len(self._deadly) < _MOST_FAILURES

    def _with_fewer(self, around: Collection[str], measured: bool) -> bool:
        """Go on without what distinguishes processes; or with half of what is switched within them, and if that dies
        too, with the other half. Whether there is any. What is not screened has a duel of its own.

        Where an earlier process started with all that this one had, none of them is to blame: what was measured stays.
        """
        if around:
            self._around.leave(self._around.racing)
            return True
        if measured:
            return False
        racing = self.racing()
        middle = len(racing) // 2
        if self._halves is None:
            self._halves = [racing[:middle], racing[middle:]]
        half = set(self._halves.pop(0) if self._halves else ())
        self.apart = (self.apart | set(racing)) - half
        self.active = (self.active - set(racing)) | half
        return bool(half)
