"""A speed-up as text, with its 95 % interval."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

from overdrive.core.interval import Interval


def rounded(found: Interval) -> tuple[str, str, str]:
    """Low, estimate and high as text, rounded outwards: the interval is never shown too narrow."""
    values = (found.low, found.estimate, found.high)
    places = 2 if found.low < 2 else 1 if found.low < 100 else 0
    if any(value != 1 and round(value, places) == 1 for value in values):
        places = 3
    ways = (ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_CEILING)
    step = Decimal(1).scaleb(-places)
    low, estimate, high = (f"{Decimal(repr(v)).quantize(step, w):,}" for v, w in zip(values, ways, strict=True))
    return low, estimate, high


def ratio(found: Interval) -> str:
    """ "1.25x [1.21, 1.30]"; 1 is the speed of what it was compared with."""
    low, estimate, high = rounded(found)
    return f"{estimate}x [{low}, {high}]"
