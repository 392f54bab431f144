"""Results that spread more, and worst runs that are worse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.evidence.spread import DOUBT_P, wider_p, worst_is_worse


def doubted(times: float, r: float, trials: int = 400) -> float:
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(trials):
        one = rng.standard_normal(16)
        other = times * (r * one + math.sqrt(1 - r * r) * rng.standard_normal(16))
        found += wider_p(one, other) < DOUBT_P
    return found / trials


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_three_times_the_spread_is_seen_and_equal_spread_is_not(r: float) -> None:
    assert doubted(3.0, r) > 0.9
    assert doubted(1.0, r) < 0.03


def test_less_spread_and_equal_runs_are_no_matter() -> None:
    assert doubted(0.3, 0.5) == 0.0
    values = np.arange(10.0)
    assert wider_p(values, values) == 1.0
    assert wider_p(values[:2], 5 * values[:2]) == 1.0


def test_the_worst_run_may_be_worse_by_the_margin_or_by_chance() -> None:
    values = np.linspace(-1, 1, 16)
    bad = values.copy()
    bad[3] = 4.0
    assert worst_is_worse(values, bad, 0.1, worse=1)
    assert not worst_is_worse(values, bad, 3.5, worse=1)
    assert not worst_is_worse(values, values + 0.5, 0.1, worse=1)
    assert not worst_is_worse(values, -bad, 0.1, worse=1)
    assert worst_is_worse(values, -bad, 0.1, worse=0)
