"""The energy of a step with and without the plan, by the machine's counters, where they can be read.

Not from a duel's blocks of 0.1 s: a GPU's counter is brought up to date about as seldom, and each side would be charged
with some of the other's.
"""

from __future__ import annotations

import time

from overdrive.core.records import TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import Energy
from overdrive.machine.energy import EnergyMeter
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.warming import WARM_UP_STEPS, settles_in

_STRETCH_SECONDS = 2.0  # of one side: beside it what a counter lags is a twentieth
_LEAST_SECONDS = 0.3  # below which nothing is said
_MOST_SECONDS = 60.0  # of all four: the budget is used up by now
_ORDER = (0, 1, 1, 0)  # what drifts evenly falls out


def energy_of(
    pool: TrialPool,
    old: TrialSpec,
    new: TrialSpec,
    meter: EnergyMeter,
    length: int | None = None,
    step_seconds: float = 0.0,
) -> Energy | None:
    """Joules a step of either, in processes of its own that run alone; None where that could not be measured.

    Args:
        length: steps that the program makes, where that is known.
        step_seconds: of the slower side, as far as known. Where one is longer than a stretch, warming up four processes
            would take minutes beyond the budget: nothing is measured. Nor is it where they take long to start.
    """
    if not meter.parts or step_seconds > _STRETCH_SECONDS:
        return None
    joules, steps = [0.0, 0.0], [0, 0]
    began = time.monotonic()
    for place, side in enumerate(_ORDER):
        measured = _stretch(pool, (old, new)[side], meter, length, began + _MOST_SECONDS)
        reckoned = (time.monotonic() - began) * len(_ORDER) / (place + 1)
        if measured is None or reckoned > _MOST_SECONDS:
            return None
        joules[side] += measured[0]
        steps[side] += measured[1]
    return Energy(joules[0] / steps[0], joules[1] / steps[1], " and ".join(meter.parts))


def _stretch(
    pool: TrialPool, spec: TrialSpec, meter: EnergyMeter, length: int | None, until: float
) -> tuple[float, int] | None:
    """What so many steps took, in joules; None where it is not known by `until` (time.monotonic())."""
    warm = max(WARM_UP_STEPS, settles_in(spec))  # no more than that: it may be a short program
    trial = Trial(pool, spec)
    try:
        trial.first_step(until)
        pace = trial.run(warm, until=until).seconds / warm
        before, began, steps = meter.read(), time.monotonic(), 0
        while (left := _STRETCH_SECONDS - (time.monotonic() - began)) > 0:
            count = max(1, round(left / max(pace, 1e-6)))
            if length is not None:
                count = min(count, length - trial.step - trial.call_steps)
            if count < 1:
                break
            block = trial.run(count, until=until)
            pace, steps = block.seconds / block.steps, steps + block.steps
        used, seconds = meter.between(before, meter.read()), time.monotonic() - began
    except TrialOver:
        return None  # the program ended before, or was late
    finally:
        trial.stop()
    return (used, steps) if used is not None and steps and seconds >= _LEAST_SECONDS else None
