"""Whether blocks feel what ran before them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.evidence.screening import CarryOver, carry_over
from tests.evidence.screening.simulated import Program, names, switches

COSTS = {"a": -0.7, "b": 0.3, "c": -0.2, **{f"c{at}": 0.0 for at in range(8)}}


def seen(late: float, seed: int = 0, pairs: int = 160, costs: dict[str, float] | None = None) -> CarryOver | None:
    design = switches(*(costs or COSTS))
    program = Program(costs or COSTS, noise=0.05, late=late, seed=seed)
    return carry_over(program.screened(design, names(design), pairs, 2), design.factors)


@pytest.mark.parametrize("late", [0.0, 0.05, 0.2])
def test_the_share_that_comes_late_is_seen(late: float) -> None:
    found = [each for seed in range(30) if (each := seen(late, seed))]
    assert len(found) == 30
    assert abs(np.mean([each.share.estimate for each in found]) - late) < 0.01
    assert np.mean([each.share.low <= late <= each.share.high for each in found]) >= 0.86
    assert np.mean([each.longer_lead for each in found]) == pytest.approx(float(late > 0.1), abs=0.1) or late == 0.05


def test_it_is_not_said_where_it_cannot_be_seen() -> None:
    assert seen(0.1, pairs=12) is None
    nothing = [seen(0.1, seed, costs={f"c{at}": 0.0 for at in range(10)}) for seed in range(10)]
    assert not any(each and each.longer_lead for each in nothing)


def test_effects_come_out_short_by_one_and_a_half_times_the_share() -> None:
    """What a longer lead is for."""
    from overdrive.evidence.screening import estimate

    design = switches(*COSTS)
    blocks = Program(COSTS, noise=0.01, late=0.2).screened(design, names(design), 200, 2)
    short = math.log(estimate(blocks, design.factors).speedup("a").estimate) / 0.7
    assert 0.66 < short < 0.76
