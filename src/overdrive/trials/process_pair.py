"""What one fresh pair of processes of a duel is to do, and what is noted of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from overdrive.core.records import Block, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import Pair
from overdrive.trials.duel import Duel, Rules, block_steps, comparable
from overdrive.trials.pool import TrialPool


@dataclass(frozen=True)
class ProcessPair:
    """What one fresh pair of processes of a duel is to do; `interleaved` and `sequential` do it."""

    pool: TrialPool
    duel: Duel
    number: int  # of the pair, from 0
    rules: Rules
    deadline: float  # time.monotonic()
    short_block: int | None  # steps in a block, where the program's length dictates them
    on_pair: Callable[[Duel], None]

    @property
    def keeps_losses(self) -> bool:
        """Whether its trials keep losses, and their traces are the duel's.

        To keep a loss is a launch a step on a GPU, 2 % of a step of 200 µs, on both sides alike: what is published has
        it in its first pair of processes, whose traces are compared, and not in those that follow.
        """
        return self.number == 0 or not self.rules.patient or self.duel.old == self.duel.new

    def spec(self, new: bool) -> TrialSpec:
        spec = self.duel.new if new else self.duel.old
        return spec if self.keeps_losses else replace(spec, losses=False)

    def order(self) -> random.Random:
        """Which side comes first is drawn from this."""
        return random.Random(1000 * self.number + len(self.duel.new.techniques))

    def started(self, first: Block, new: bool) -> None:
        """Note the first step of a side: its seconds are those of all set-up."""
        side = self.duel.new_side if new else self.duel.old_side
        side = replace(
            side,
            setups=(*side.setups, first.seconds),
            launches=(*side.launches, first.launch),
            installs=(*side.installs, first.installing),
        )
        if new:
            self.duel.new_side = side
        else:
            self.duel.old_side = side

    def measured(self, old: Block, new: Block, old_first: bool) -> Pair:
        """Note a block of each side."""
        duel = self.duel
        duel.old_side, duel.new_side = duel.old_side.add(old), duel.new_side.add(new)
        waited, others = _both(old.waited, new.waited), _both(old.others, new.others)
        seconds, calls = comparable(duel, old, new), (old.calls, new.calls)
        crowded = _both(old.crowded, new.crowded)
        pair = Pair(self.number, old.steps, old.seconds, seconds, old_first, waited, others, crowded, calls)
        duel.pairs.append(pair)
        return pair


@dataclass(frozen=True)
class Pace:
    """What warming up showed."""

    warm_steps: int
    step_seconds: float  # of the faster side
    slower_step_seconds: float
    total_steps: int | None = None

    @property
    def block_steps(self) -> int:
        return block_steps(self.step_seconds, self.slower_step_seconds)


class blame:
    """Notes on the duel which side a `TrialOver` came from, and lets it pass."""

    def __init__(self, duel: Duel, new: bool) -> None:
        self._duel = duel
        self._new = new

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TrialOver):
            if self._new:
                self._duel.exit_reason = error.exit_reason
            else:
                self._duel.old_exit_reason = error.exit_reason


def _both(one: float | None, other: float | None) -> tuple[float, float] | None:
    """Rounded, for the ledger's sake."""
    return None if one is None or other is None else (round(one, 3), round(other, 3))
