"""Brings a copy of a program to its usual pace before it is measured or recorded."""

from __future__ import annotations

from overdrive.trials.trial import Trial
from overdrive.trials.warming import half_a_second, warm_up

_STEPS = 9
_SECONDS = 4.0  # so long they take at the most, where a step takes less; one step is enough where it takes longer


def warm(trial: Trial, length: int | None) -> float:
    """Returns the pace, in seconds a step. `length`: steps of the whole program, where that is known."""
    block = trial.run(1)
    pace = block.seconds / block.steps
    steps = int(min(_STEPS - 1, _SECONDS / max(pace, 1e-6)))
    if length is not None:
        steps = min(steps, length // 6 - 1)
        block = trial.run(steps) if steps > 0 else block
        return block.seconds / block.steps
    return warm_up([trial], first=max(1, steps), enough=half_a_second).paces[0]
