"""Whole runs of the program, start-up included: what they gain, and after how many steps a tune has paid for itself."""

from __future__ import annotations

from overdrive.core.tune_result import Figures
from overdrive.evidence.speed import break_even_steps
from overdrive.tuner.findings import Findings

LENGTHS = (1_000, 10_000, 100_000)  # steps of the whole runs whose gain is given


def whole_run(before: Figures, after: Figures, steps: int) -> float:
    """The speedup of a run of so many steps, start and end of the process included, and what comes between epochs where
    that is known."""
    old, new = run_seconds(before, after, steps)
    return old / new


def run_seconds(before: Figures, after: Figures, steps: int) -> tuple[float, float]:
    """Of a run of so many steps as it was, and of one over as many samples under the plan."""
    epochs = steps / before.epoch_steps if before.epoch_steps else 0.0
    old = _beside(before) + (steps - 1) * _pace(before) + epochs * (before.between_epochs or 0.0)
    new = _beside(after) + (steps - 1) / _times_the_batch(before, after) * _pace(after)
    return old, new + epochs * (after.between_epochs or 0.0)


def break_even(found: Findings, before: Figures | None, after: Figures | None) -> int | None:
    if before is None or after is None or not found.chosen or found.needed():
        return None
    # Filling a cache is in both: where it lies on disk, the trials filled it, once; where it lies in memory, each
    # process fills it anew before its first step, to which its set-up reaches.
    setup = found.seconds + max(0.0, _setup(after) - _setup(before))
    times = _times_the_batch(before, after)  # steps of before are what is counted
    return break_even_steps(setup, _pace(before), _pace(after) / times)


def _setup(side: Figures) -> float:
    return side.setup_seconds or 0.0


def _beside(side: Figures) -> float:
    """Seconds of a run before its first step and after its last."""
    return _setup(side) + (side.end_seconds or 0.0)


def _pace(side: Figures) -> float:
    """Seconds a step."""
    return side.seconds_per_step or 0.0


def _times_the_batch(before: Figures, after: Figures) -> int:
    """How many times as many samples a step has: for as many samples it takes so many fewer steps."""
    one, other = ((side.samples_per_s or 0) * _pace(side) for side in (before, after))
    return max(1, round(other / one)) if one else 1
