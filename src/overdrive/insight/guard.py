"""Two versions of a program: whether the new one trains slower than the old one, and whether it still does the same."""

from __future__ import annotations

import time
from dataclasses import dataclass

from overdrive.core.interval import Interval
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import judged_exact
from overdrive.trials.duel import Rules
from overdrive.trials.pool import TrialPool
from overdrive.trials.run_duel import run_duel
from overdrive.trials.untimed import UntimedRunner

_STEPS = 100  # that are compared bit for bit, where the program makes as many
_PROOF_SHARE = 0.5  # of the time, that comparing may take
# Three pairs of processes: how much processes of one program differ is in the interval then.
_RULES = Rules(looks=(10, 20), processes=3, most_processes=3, patient=True)


class CannotGuard(Exception):
    """The two could not be compared; the message is one sentence for people."""


@dataclass(frozen=True)
class Compared:
    """The new version beside the old one."""

    speed: Interval | None  # of a step: 0.5 is half as fast; None: not established
    difference: str | None = None  # the first that was found between the two, in words
    steps: int = 0  # that were the same, bit for bit

    def slower_than(self, share: float) -> bool:
        """Whether it is established that a step takes longer by more than this share."""
        return self.speed is not None and self.speed.high < 1 / (1 + share)


def compare(old: Program, new: Program, budget: float, same: bool = True) -> Compared:
    """Both, in trials that leave no trace.

    Args:
        budget: seconds.
        same: whether to compare what they compute, too.

    Raises:
        CannotGuard: one of them fails, makes no step, or differs from run to run where `same` is to be seen.
    """
    began = time.monotonic()
    with TrialPool() as pool:
        difference, steps = None, 0
        if same:
            difference, steps = _difference(pool, old, new, began + _PROOF_SHARE * budget)
        duel = run_duel(pool, TrialSpec(old), TrialSpec(new), _RULES, began + budget)
        failure = duel.old_exit_reason or duel.exit_reason
        if failure and not duel.pairs:
            which = "The old version" if duel.old_exit_reason else "The new version"
            raise CannotGuard(f"{which} cannot be measured ({failure}).")
    return Compared(duel.interval, difference, steps)


def _difference(pool: TrialPool, old: Program, new: Program, until: float) -> tuple[str | None, int]:
    runner = UntimedRunner(pool)
    runner.until = until
    first = _trace(runner, old, "The old version")
    other = _trace(runner, new, "The new version")
    check = judged_exact(first, other)
    if check.level is not None:
        return None, first.steps
    # It says something of the new version only where the old one repeats itself.
    itself = judged_exact(first, _trace(runner, old, "The old version"))
    if itself.level is None:
        raise CannotGuard(f"The old version differs from run to run ({itself.sentence}): compare with same=False.")
    return check.sentence, 0


def _trace(runner: UntimedRunner, program: Program, which: str) -> Trace:
    found = runner.run(TrialSpec(program, digests="bits"), _STEPS)
    if isinstance(found, ExitReason):
        raise CannotGuard(f"{which} could not be run ({found}).")
    return found
