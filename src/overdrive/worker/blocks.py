"""The blocks of steps that a worker's program makes: where one ends, and what is measured of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from overdrive.core.exchanged import Exchanged
from overdrive.core.records import Block
from overdrive.worker.call_timer import CallTimer, Taken
from overdrive.worker.recording import Recorder


class Blocks:
    def __init__(
        self,
        recorder: Recorder,
        calls: CallTimer | None,
        timed: str,
        settling: Callable[[], int],
        exchanged: Callable[[], Exchanged | None] = lambda: None,
        installing: Callable[[], float] = lambda: 0.0,
        training_calls: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            calls: of a program that trains nothing.
            timed: what a block's seconds are of (see `TrialSpec.timed`).
            settling: calls so far in which a technique did not act as it will.
            exchanged: with other ranks, so far; None where there are none.
            installing: seconds so far in which we were put in place.
            training_calls: of its models in training so far; 0 where nobody counts them.
        """
        self._recorder, self._calls, self._timed, self._settles = recorder, calls, timed, settling
        self._exchanges, self._exchanged = exchanged, Exchanged()
        self._installing = installing
        self._training_calls, self._called = training_calls, 0
        self._due = 1  # the step of the next report; the first step is reported alone, with its set-up cost
        self._lead = 0  # the step at which the time is taken, where some come before that are not timed
        self._first_step = 0  # that of the block that has begun
        self._samples = 0.0
        self._settling = 0
        self._began = time.perf_counter()
        self._seen = 0
        self.call_steps = 1  # the most that were made in one call, between which it cannot stand still
        self.rests: list[int] = []  # steps after which it could stand still

    def rests_at(self, steps: int) -> None:
        """The program has come to this step, and may stand still."""
        self.call_steps = max(self.call_steps, steps - self._seen)
        self.rests.append(steps)
        self._seen = steps

    def starts_clock(self) -> None:
        """What the program has done so far is not timed."""
        self._began = time.perf_counter()

    def order(self, steps: int, lead: int) -> None:
        """The next block has so many steps, after a lead of so many."""
        self._lead = self._first_step + lead if lead else 0
        self._due = self._first_step + lead + steps

    def lead_ends(self, steps: int) -> bool:
        return bool(self._lead) and steps >= self._lead

    def lead_over(self, steps: int) -> None:
        """What is timed begins, as long as it was ordered: a lead of several steps in a call may be longer."""
        self._due, self._lead = self._due + steps - self._lead, 0
        self._begin(steps)

    def ends(self, steps: int) -> bool:
        return steps >= self._due

    def made(self, steps: int) -> int:
        return steps - self._first_step

    def measured(self, steps: int, now: float, memory: int, left_out: Mapping[str, str]) -> Block:
        """The block that ended at `now` (time.perf_counter()); the next one begins."""
        calls = self._calls.taken() if self._calls else Taken()
        # The time of the calls alone, but of a first block, which is for the set-up.
        of_calls = self._timed == "call" and self._first_step > 0
        seconds = math.fsum(calls.seconds) if of_calls else now - self._began
        samples, settling = self._recorder.samples - self._samples, self._settles() - self._settling
        so_far = self._exchanges()
        exchanged = so_far.since(self._exchanged) if so_far else None
        made = self.made(steps)
        installing = 0.0 if self._first_step else self._installing()
        block = Block(
            steps,
            made,
            seconds,
            samples,
            memory,
            self.call_steps,
            left_out,
            calls.usual,
            settling,
            exchanged,
            installing=installing,
            training_calls=self._training_calls() - self._called,
        )
        self._begin(steps)
        return block

    def _begin(self, steps: int) -> None:
        self._first_step, self._samples, self._settling = steps, self._recorder.samples, self._settles()
        if self._calls:
            self._calls.taken()  # of before
        self._exchanged = self._exchanges() or Exchanged()
        self._called = self._training_calls()
        self._began = time.perf_counter()
