"""What counts as one step of a program, and when its worker may stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from overdrive.seams.answering import AnsweringModel
from overdrive.seams.hub import Seams
from overdrive.seams.step_counter import StepCounter


class Clock(Protocol):
    """Counts a program's steps."""

    @property
    def inference(self) -> bool:
        """Whether a step is a call of a model, in a program that trains nothing."""

    @property
    def trains(self) -> bool:
        """Whether such a program has been seen to train after all."""

    @property
    def steps(self) -> int:
        """Complete steps so far."""

    @property
    def ticked_at(self) -> float:
        """time.perf_counter() when the last of them was complete."""

    def watch(self, seams: Seams) -> None:
        """Begin to count. Who needs to know of a step subscribes after this."""

    def at_rest(self, seams: Seams, act: Callable[[], None]) -> None:
        """Have `act` called after each step, or after the several of one call, where the program may stand still.

        It is called after all that were given before; given again, it is the last once more.
        """


class TrainingClock(StepCounter):
    """One step is one step of the leading optimizer (see `StepCounter`)."""

    inference = trains = False

    def __init__(self) -> None:
        super().__init__()
        self._acts: dict[Callable[[], None], Callable[[], None]] = {}

    def watch(self, seams: Seams) -> None:
        seams.step_ends.subscribe(self.tick)

    def at_rest(self, seams: Seams, act: Callable[[], None]) -> None:
        if act in self._acts:
            seams.between_steps.unsubscribe(self._acts[act])
            seams.between_steps.subscribe(self._acts[act])
            return
        seen = 0

        def rests() -> None:
            nonlocal seen
            if (steps := self.steps) != seen:  # else another optimizer of the same step
                seen = steps
                act()

        self._acts[act] = rests
        seams.between_steps.subscribe(rests)


class InferenceClock(TrainingClock):
    """One step is one call of the leading model, in a session of a program that trains nothing."""

    inference = True

    def __init__(self) -> None:
        super().__init__()
        self.trains = False

    def tick(self, optimizer: Any) -> bool:
        if isinstance(optimizer, AnsweringModel):
            return super().tick(optimizer)
        self.trains = True
        return False


class WholeRunClock(TrainingClock):
    """Counts nothing and never stands still: the program goes on to its end, or answers for long enough."""

    def watch(self, seams: Seams) -> None:
        pass

    def at_rest(self, seams: Seams, act: Callable[[], None]) -> None:
        pass


WHOLE_RUN = "whole run"

# By the name that a `TrialSpec` gives; a module from outside (`also`) may bring another.
CLOCKS: dict[str, Callable[[], Clock]] = {
    "training": TrainingClock,
    "inference": InferenceClock,
    WHOLE_RUN: WholeRunClock,
}


def clock_for(inference: bool) -> Clock:
    return CLOCKS["inference" if inference else "training"]()
