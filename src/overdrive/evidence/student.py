"""Student's t for whole degrees of freedom, and Welch's interval, so that nobody needs SciPy for a quantile."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.interval import Interval


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


def difference(original: NDArray[np.floating[Any]], candidate: NDArray[np.floating[Any]], alpha: float) -> Interval:
    """The candidate's mean less the original's; Welch's interval errs on either side with probability `alpha`.

    The arms' variances may differ. Welch's degrees of freedom are rounded down to whole ones, which makes
    the interval up to 2 % wider at 10 runs an arm and never narrower. It is endless where an arm has fewer
    than two runs or its variance is beyond all numbers; the estimate is NaN where an arm has no run.
    """
    counts = len(original), len(candidate)
    centre = float(candidate.mean() - original.mean()) if min(counts) else math.nan
    if min(counts) < 2:
        return Interval(-math.inf, centre, math.inf)
    with np.errstate(over="ignore"):
        parts = [float(arm.var(ddof=1)) / len(arm) for arm in (original, candidate)]
    variance = sum(parts)
    if not math.isfinite(variance):
        return Interval(-math.inf, centre, math.inf)
    if variance == 0:
        return Interval(centre, centre, centre)
    shares = sum((part / variance) ** 2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    freedom = math.floor(1 / shares + 1e-9)  # equal variances: 2 (n - 1), and not one less by a rounding
    half = quantile(1 - 2 * alpha, max(1, freedom)) * math.sqrt(variance)
    return Interval(centre - half, centre, centre + half)
