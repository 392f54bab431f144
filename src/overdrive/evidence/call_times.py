"""How long a call takes: p50 and p99 with their intervals, and the ratio of two that were timed in turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.core.interval import Interval

_CONFIDENCE = 0.95
_RESAMPLES = 2000

Blocks = Sequence[Sequence[float]]  # seconds of single calls, in the blocks in which they were made


@dataclass(frozen=True)
class Latency:
    """In seconds. An end that so few calls say nothing of is endless: of p99 the upper one needs 368 calls."""

    calls: int
    p50: Interval
    p99: Interval


def latency(blocks: Blocks) -> Latency:
    """
    Raises:
        ValueError: there is no call.
    """
    values = np.sort(np.concatenate([np.asarray(each, float) for each in blocks])) if blocks else np.zeros(0)
    if not len(values):
        raise ValueError("no call was timed")
    return Latency(len(values), _quantile(values, 0.5), _quantile(values, 0.99))


def _quantile(values: np.ndarray[tuple[int], np.dtype[np.float64]], share: float) -> Interval:
    """By order statistics: how many of the calls lie below the quantile is binomial, whatever their distribution."""
    count = len(values)
    tail = (1 - _CONFIDENCE) / 2
    below = np.cumsum([_binomial(count, k, share) for k in range(count + 1)])
    low = int(np.searchsorted(below, tail))  # P(so few or fewer lie below) first reaches the tail
    high = int(np.searchsorted(below, 1 - tail)) + 1
    return Interval(
        float(values[low - 1]) if low >= 1 else 0.0,
        float(np.quantile(values, share)),
        float(values[high - 1]) if high <= count else math.inf,
    )


def _binomial(count: int, k: int, share: float) -> float:
    logs = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
    return math.exp(logs + k * math.log(share) + (count - k) * math.log1p(-share))


def speedup(original: Blocks, candidate: Blocks) -> Interval:
    """The original's median call over the candidate's; pairs of blocks, which were made in turns, are drawn anew."""
    one, other = (np.array([float(np.median(each)) for each in blocks]) for blocks in (original, candidate))
    pairs = np.log(one[: len(other)] / other[: len(one)])
    drawn = np.random.default_rng(0).integers(0, len(pairs), (_RESAMPLES, len(pairs)))
    low, high = np.quantile(np.median(pairs[drawn], axis=1), ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2))
    return Interval(*(float(math.exp(each)) for each in (low, float(np.median(pairs)), high)))
