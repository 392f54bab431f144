"""Student's t and chi-square for whole degrees of freedom, and the interval of pairs, without SciPy."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.core.interval import Interval


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


def chi_square_high(alpha: float, freedom: int) -> float:
    """What a chi-square exceeds with probability `alpha`: 16.9 for 0.05 and 9 (Wilson and Hilferty, 1931; to 1 %)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(1 - alpha) * math.sqrt(part)) ** 3)


def paired(original: NDArray[np.floating[Any]], candidate: NDArray[np.floating[Any]], alpha: float) -> Interval:
    """The mean of the candidate less the original, pair by pair; errs on either side with probability `alpha`.

    It is endless for fewer than two pairs or where their variance is beyond all numbers; the estimate is NaN for none.
    """
    differences = candidate - original
    count = len(differences)
    centre = float(differences.mean()) if count else math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(differences.std(ddof=1)) if count > 1 else math.inf
    if not math.isfinite(spread):
        return Interval(-math.inf, centre, math.inf)
    half = quantile(1 - 2 * alpha, count - 1) * spread / math.sqrt(count)
    return Interval(centre - half, centre, centre + half)
