"""Speed-ups as text."""

from __future__ import annotations

import math

import pytest

from overdrive.core.interval import Interval


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Interval(1.2049, 1.25, 1.2951), "1.25x [1.20, 1.30]"),
        (Interval(1.0799, 1.08, 1.0801), "1.08x [1.07, 1.09]"),  # never narrower than it is
        (Interval(1.01, 2.94, 4.21), "2.94x [1.01, 4.21]"),
        (Interval(2.02, 2.94, 4.21), "2.9x [2.0, 4.3]"),
        (Interval(0.9961, 1.0, 1.0042), "1.000x [0.996, 1.005]"),  # 1 is no gain, and nothing else is told so
        (Interval(120.0, 1500.4, 2100.2), "1,500x [120, 2,101]"),
        (Interval(0.0, 1.3, math.inf), "1.30x [0.00, inf]"),
    ],
)
def test_a_speedup_is_rounded_outwards_wherever_it_is_told(found: Interval, told: str) -> None:
    assert found.as_speedup() == told
