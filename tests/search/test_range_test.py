"""What the losses of a growing learning rate are read as."""

from __future__ import annotations

import math
import random

from overdrive.search.range_test import RAMP, read

STEPS = 200


def losses(lowest: float, broken: float = math.inf, noise: float = 0.05) -> list[float]:
    """A loss that falls towards a factor and rises beyond it."""
    chance = random.Random(0)
    found = []
    for step in range(STEPS):
        factor = RAMP[0] * (RAMP[1] / RAMP[0]) ** (step / (STEPS - 1))
        if factor >= broken:
            found.append(math.nan)
            continue
        found.append(2 - 1.5 / (1 + abs(math.log10(factor / lowest))) + chance.gauss(0, noise))
    return found


def test_the_rate_with_the_lowest_loss_is_found_within_the_lag_of_its_mean() -> None:
    for lowest in (0.1, 1.0, 30.0):
        found = read(losses(lowest), STEPS)
        assert found and lowest / 1.5 < found.lowest < 4 * lowest
        assert found.suggested and all(rate < lowest for rate in found.suggested)


def test_where_the_loss_is_no_number_the_training_has_broken() -> None:
    found = read(losses(1.0, broken=10.0), STEPS)
    assert found and found.breaks and 9 < found.broken < 12


def test_losses_that_never_fall_tell_nothing() -> None:
    assert read([1.0 + step / 100 for step in range(STEPS)], STEPS) is None
    assert read([1.0] * 10, STEPS) is None
    assert read([math.nan] * STEPS, STEPS) is None
