"""Student's t distribution for whole degrees of freedom, so that nobody needs SciPy for a quantile."""

from __future__ import annotations

import math
from functools import cache


def within(t: float, freedom: int) -> float:
    """The probability that |T| stays below `t`; exact sums (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@cache
def quantile(confidence: float, freedom: int) -> float:
    """The t that |T| stays below with probability `confidence`: 4.303 for 0.95 and 2 degrees of freedom."""
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence {confidence} must lie between 0 and 1, and freedom {freedom} be 1 or more")
    low, high = 0.0, math.pi / 2  # bisect on atan(t / sqrt(freedom)): the range is bounded
    for _ in range(100):
        middle = (low + high) / 2
        if within(math.tan(middle) * math.sqrt(freedom), freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.tan(low) * math.sqrt(freedom)
