"""What a program does between two epochs (evaluations, checkpoints), as it is and under its plan.

No block of a duel holds it, or few do, which fall out as outliers do; a whole run has all of it. So it is measured once
the plan is there, in a process of either side whose epochs of training are short.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from overdrive.core.facts import Facts
from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

_OBSERVER = "overdrive.worker.epoch_ends"
# Where an epoch is short, blocks do hold its end. They have 0.1 s of steps, and a fifth of them is left out at either
# end: what comes in one of ten is.
_FEWEST_STEPS, _FEWEST_SECONDS = 20, 1.0
SHORT_EPOCHS = 12  # steps of two
_MOST_STEPS = 40  # to be made


@dataclass(frozen=True)
class BetweenEpochs:
    """Seconds, beyond those of a step. `steps`: of an epoch of the program as it is."""

    steps: float
    before: float
    after: float


def steps_of_epoch(facts: Facts) -> float | None:
    """None where that is not known, or so few that duels measure what comes between two."""
    if facts.framework != "torch" or facts.inference or not facts.samples_per_step:
        return None
    steps = max((each.length or 0 for each in facts.loaders), default=0) / facts.samples_per_step
    return steps if steps >= _FEWEST_STEPS and steps * facts.step_seconds >= _FEWEST_SECONDS else None


def between_epochs(
    pool: TrialPool, plain: TrialSpec, tuned: TrialSpec, facts: Facts, until: float
) -> BetweenEpochs | None:
    """None where it was not seen.

    Args:
        facts: of the program as it is.
        until: time.monotonic() at which it has to be known.
    """
    steps = steps_of_epoch(facts)
    before = _seconds(pool, plain, 1, until) if steps else None
    # A cache of samples is filled by the first evaluation under the plan, and by no later one, in later runs neither.
    after = _seconds(pool, tuned, 2, until) if before is not None else None
    return BetweenEpochs(steps, before, after) if steps and before is not None and after is not None else None


def _seconds(pool: TrialPool, spec: TrialSpec, ends: int, until: float) -> float | None:
    """Before the first step after so many epochs; of a program that ends before, what came after its last step."""
    trial = Trial(pool, replace(spec, observers=(_OBSERVER,)))
    took: dict[int, float] = {}
    seen: Sequence[int] = ()
    began = time.monotonic()
    try:
        trial.first_step(until)
        while len(seen) < ends and trial.step < _MOST_STEPS:
            began = time.monotonic()
            block = trial.run(1, until=until)
            took[block.step] = block.seconds
            seen = trial.observed().get(_OBSERVER, ())
    except TrialOver as over:
        if over.exit_reason.kind != "ended":
            return None
        if not seen:
            seen = [trial.step + 1]
            took[trial.step + 1] = time.monotonic() - began
    finally:
        trial.stop()
    usual = [seconds for step, seconds in took.items() if step not in seen]
    if not usual or not seen or seen[-1] not in took:
        return None
    return max(0.0, took[seen[-1]] - statistics.median(usual))
