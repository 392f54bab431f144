"""One live trial of a screening: all candidates are installed, and a row says which are on in the next block."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from overdrive.core.messages import Switch, Switched
from overdrive.core.records import Block, ExitReason, TrialOver
from overdrive.core.trial_spec import SWITCHED, TrialSpec
from overdrive.evidence.neighbours import disturbed
from overdrive.evidence.screening import Factor, Observation, Row, on_in
from overdrive.trials.duel import block_steps, in_a_step, lead_steps
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.warming import LONGEST_CHUNK, may_settle, settles, settles_in, warmed_up


class SwitchedTrial(Trial):
    """A trial whose techniques can be switched where it stands still."""

    def switch(self, on: Collection[str]) -> Switched:
        """Have these techniques on and all other switchable ones off.

        Raises:
            TrialOver: it ended, failed, hung or crashed.
        """
        return self._ask(Switch(tuple(on)), Switched)


class ScreeningTrial:
    """Runs fold-over pairs in a process of its own.

    Labels of factors are names of techniques in the spec. A placebo's label is no technique's: switching it is nothing.
    Techniques that cannot be switched are on all the time.
    """

    def __init__(
        self,
        pool: TrialPool,
        spec: TrialSpec,
        number: int,
        began: float = 0.0,
        disturbed: Callable[[Block], bool] = disturbed,
    ) -> None:
        """
        Args:
            number: of the process, which its blocks carry.
            began: time.monotonic() of the screening's beginning, from which its blocks are timed.
            disturbed: whether a neighbour disturbed a block.
        """
        self.number = number
        self.start_seconds = 0.0  # until it was warm
        self.on: tuple[str, ...] = ()  # what was last to be on
        self.lead_factor = 1  # how many times the usual untimed steps go before a block (see `carry_over`)
        self.trial = SwitchedTrial(pool, replace(spec, environment={**spec.environment, **SWITCHED}))
        self._began = began
        self._disturbed = disturbed
        self._size = 1
        self._a_batch_a_step = True
        self._batches = False  # whether any step has one
        self._started = time.monotonic()

    @property
    def left_out(self) -> dict[str, str]:
        """Techniques that are out of the race in this process, with the reason."""
        names = {name for name, _ in self.trial.spec.techniques}
        return {name: reason for name, reason in self.trial.left_out.items() if name in names}

    def warm_up(self, rows: Sequence[Row], factors: Sequence[Factor], until: float = math.inf) -> float:
        """Step it under these rows in turn until it is at its usual pace: what techniques build once is there then.

        A fold-over pair has each of them on once; the time of several pairs is that of one where steps are short.

        Returns: the seconds of a step in the quickest of the rows.

        Raises:
            TrialOver: it ended, failed, hung or crashed, or the first step did not come until then (time.monotonic()).
        """
        self.trial.first_step(until)
        steps, seconds, chunk = 0, 0.0, 1
        paces: list[float] = []
        settling = 2 * settles_in(self.trial.spec)  # what is switched is on in half of the rows
        unsettled = False
        while steps < settling or not (paces and warmed_up(steps, seconds) and not unsettled):
            paces, unsettled = [], False
            for row in rows:
                self._switch(on_in(row, factors))
                block = self.trial.run(chunk)
                self._a_batch_a_step &= block.samples > 0
                self._batches |= block.samples > 0
                paces.append(block.seconds / block.steps)
                steps, seconds = steps + block.steps, seconds + block.seconds
                unsettled |= settles(block) and may_settle(steps // len(rows), seconds)
            chunk = min(steps // len(rows), LONGEST_CHUNK)
        self._size = block_steps(min(paces), max(paces))
        self.start_seconds = time.monotonic() - self._started
        return min(paces)

    def pair(self, number: int, rows: Sequence[Row], factors: Sequence[Factor]) -> list[Observation]:
        """A block of each row, with as many steps; `number` is the pair's. One in which a technique failed is dropped.

        Raises:
            TrialOver: it ended, failed, hung or crashed; the pair is lost.
        """
        out = set(self.left_out)
        found, blocks = [], []
        for row in rows:
            at = time.monotonic() - self._began
            block = self._block(on_in(row, factors))
            blocks.append(block)
            failed, disturbed = set(self.left_out) != out, self._disturbed(block)
            found.append(Observation(self.number, number, row, 0.0, at, failed, disturbed))
        paces = self._paces(blocks)
        return [replace(each, log_seconds=math.log(pace)) for each, pace in zip(found, paces, strict=True)]

    def _paces(self, blocks: Sequence[Block]) -> list[float]:
        """Seconds a step of each; where each step has a batch of its own, of one with as many samples in all of them:
        an epoch's last batch may be a small one. Where no step has a batch, of one with as many calls of models.

        Where several steps are made of one batch (truncated backpropagation through time), it is counted in the first
        of them alone: what a block has of samples is an accident then. Blocks of one step, with which trials warm up,
        show it.
        """
        self._a_batch_a_step &= all(block.samples > 0 for block in blocks)
        self._batches |= any(block.samples for block in blocks)
        shares = in_a_step(blocks, self._a_batch_a_step, self._batches)
        usual = statistics.fmean(shares)
        return [block.seconds / block.steps * usual / share for block, share in zip(blocks, shares, strict=True)]

    def stop(self) -> None:
        self.trial.stop()

    def _switch(self, on: Collection[str]) -> None:
        self.on = tuple(on)
        self.trial.switch(on)

    def _block(self, on: Collection[str]) -> Block:
        trial = self.trial
        self._switch(on)
        call = trial.call_steps
        size = -(-self._size // call) * call
        return trial.run(size, self.lead_factor * max(call, lead_steps(size, call)))


def failed(over: TrialOver) -> ExitReason | None:
    """Why a trial cannot go on; None where the program has come to its end, and another may take its place."""
    return None if over.exit_reason.kind == "ended" else over.exit_reason
