"""A learning-rate range test: one run in which the rate grows step by step, and what its losses tell.

Source: Smith, Cyclical Learning Rates for Training Neural Networks, https://arxiv.org/abs/1506.01186.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.core.hyperparameters import Hyperparameters
from overdrive.core.program import Program
from overdrive.core.records import Trace, TrialOver
from overdrive.core.search_result import Tried
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.equivalence import step_losses
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

RAMP = (1e-3, 1e3)  # times the program's own rate
FEWEST_STEPS, _MOST_STEPS = 40, 200
_CHUNK = 20
_SMOOTHING = 0.9
_RISEN = 4.0  # times the fall so far, above the lowest: the training has broken
# The loss is lowest where the rate is about to be too large, and its mean lags ten steps behind.
_BELOW_LOWEST = (10.0, 40.0)


@dataclass(frozen=True)
class RangeTest:
    """Learning rates, as factors of the program's own."""

    lowest: float  # where the smoothed loss was lowest ...
    broken: float  # ... and where it had risen far above that; infinite where it did not

    @property
    def breaks(self) -> bool:
        return self.broken < math.inf

    @property
    def suggested(self) -> tuple[float, ...]:
        """Rates to begin with."""
        return tuple(self.lowest / below for below in _BELOW_LOWEST)


def cost_of_range_test(defaults: Tried) -> float:
    """Seconds that a range test takes at the most, as the default run tells."""
    return defaults.start + min(defaults.steps, _MOST_STEPS) * defaults.pace


def range_test(
    pool: TrialPool, program: Program, techniques: Sequence[Chosen], steps: int, launcher: Launcher | None = None
) -> RangeTest | None:
    """None where its losses tell nothing. `steps`: how many the program makes."""
    steps = min(steps, _MOST_STEPS)
    wanted = Hyperparameters(ramp=(*RAMP, steps))
    trial = Trial(pool, TrialSpec(program, tuple(techniques), hyperparameters=wanted), launcher)
    trace: Trace | None = None
    try:
        trial.first_step(time.monotonic() + pool.first_patience)
        while trial.step < steps:
            trial.run(min(_CHUNK, steps - trial.step))
            trace = trial.trace()
            found = read(step_losses(trace), steps)
            if found and found.breaks:
                return found
    except TrialOver as over:
        trace = over.trace or trace
    finally:
        trial.stop()
    return read(step_losses(trace), steps) if trace else None


def read(losses: Sequence[float], steps: int) -> RangeTest | None:
    """What the losses of a ramp over so many steps tell; None where they never fell."""
    low, high = RAMP
    factors = [low * (high / low) ** (step / max(1, steps - 1)) for step in range(len(losses))]
    smooth, mean, weight = [], 0.0, 0.0
    broken = math.inf
    for factor, loss in zip(factors, losses, strict=True):
        if not math.isfinite(loss):
            broken = factor
            break
        mean, weight = _SMOOTHING * mean + loss, _SMOOTHING * weight + 1
        smooth.append(mean / weight)
        if len(smooth) > 1 and smooth[-1] - min(smooth) > _RISEN * max(smooth[0] - min(smooth), 1e-12):
            if len(smooth) < len(losses) // 4:
                continue  # the noise of small rates, at which nothing is learned
            broken = factor
            break
    if len(smooth) < FEWEST_STEPS // 2:
        return None
    at = min(range(len(smooth)), key=smooth.__getitem__)
    if at < 2 or smooth[at] >= smooth[0]:
        return None
    return RangeTest(factors[at], broken)
