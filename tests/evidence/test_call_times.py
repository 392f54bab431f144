"""Quantiles of calls with intervals that hold what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.evidence.call_times import latency, speedup


def test_the_interval_holds_the_true_quantile_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    inside = {0.5: 0, 0.99: 0}
    for _ in range(400):
        found = latency([rng.exponential(size=500)])
        for share, interval in ((0.5, found.p50), (0.99, found.p99)):
            inside[share] += interval.low <= -math.log(1 - share) <= interval.high
    assert all(0.93 <= count / 400 <= 0.99 for count in inside.values())


@pytest.mark.parametrize(("calls", "known"), [(367, False), (368, True)])
def test_few_calls_say_nothing_of_the_upper_end_of_p99(calls: int, known: bool) -> None:
    found = latency([list(range(calls))])
    assert math.isfinite(found.p99.high) is known and math.isfinite(found.p50.high)


def test_a_speedup_is_of_medians_of_blocks_that_were_made_in_turns() -> None:
    rng = np.random.default_rng(0)
    drift = np.exp(rng.normal(0, 0.5, 40))  # of the machine: the same for both
    one, other = ([list(mean * d * rng.gamma(100, 0.01, 20)) for d in drift] for mean in (3e-3, 2e-3))
    found = speedup(one, other)
    assert found.low < 1.5 < found.high and found.high - found.low < 0.1


def test_no_call_is_no_latency() -> None:
    with pytest.raises(ValueError, match="no call"):
        latency([])
