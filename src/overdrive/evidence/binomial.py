"""Exact one-sided bounds of a share, from how many of a number of samples said yes (Clopper and Pearson, 1934)."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05


def samples_needed(margin: float, other: float = 0.0) -> int:
    """So many samples establish the margin where this share of them, below it, is answered differently; to 10 %."""
    fewest = math.log(ALPHA) / math.log1p(-margin)
    normal = NormalDist().inv_cdf(1 - ALPHA) ** 2 * other * (1 - other) / (margin - other) ** 2
    count = math.ceil(max(fewest, normal))
    while at_most(math.ceil(other * count), count) > margin:
        count += 1 + count // 10
    return count


def at_most(others: int, samples: int) -> float:
    """The share that a yes has with a confidence of 1 - `ALPHA` at most, after `others` of `samples`."""
    if others >= samples:
        return 1.0
    low, high = others / samples, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if up_to(others, samples, middle) > ALPHA:
            low = middle
        else:
            high = middle
    return high


def at_least(others: int, samples: int) -> float:
    """The other end of such an interval."""
    return 1 - at_most(samples - others, samples)


def up_to(count: int, samples: int, share: float) -> float:
    """The probability of `count` or fewer of `samples`."""
    if share <= 0 or share >= 1:
        return 1.0 if share <= 0 else float(count >= samples)
    each = np.arange(count + 1)
    logs = _log_ways(count, samples) + each * math.log(share) + (samples - each) * math.log1p(-share)
    return min(1.0, float(np.exp(logs).sum()))


@lru_cache(maxsize=64)
def _log_ways(count: int, samples: int) -> NDArray[np.float64]:
    """Logarithms of how many ways there are to choose 0, 1, … `count` of them."""
    each = np.arange(1, count + 1)
    return np.concatenate([[0.0], np.cumsum(np.log(samples - each + 1) - np.log(each))])
