"""How long calls of a model take: p50 and p99 with intervals, and the ratio of two that were timed in turns.

The calls of a confirmation come in blocks of fresh processes. What disturbs one call disturbs its neighbours, so whole
blocks are drawn again for the 95 % interval (a bootstrap; Künsch, 1989), within processes that are drawn again too.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from overdrive.core.interval import Interval

HALF, MOST = 0.50, 0.99
_DRAWS = 400
FEWEST = 368  # calls, for a 99th percentile: of fewer all lie below it with a probability of more than 2.5 %
_RESAMPLES = 2000


def percentiles(blocks: Sequence[tuple[int, Sequence[float]]]) -> tuple[Interval | None, Interval | None]:
    """Of the seconds of calls, p50 and p99; None where there are too few.

    Args:
        blocks: (process, seconds of each call).
    """
    by_process: dict[int, list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = defaultdict(list)
    for process, seconds in blocks:
        if seconds:
            by_process[process].append(np.asarray(seconds, dtype=np.float64))
    every = [block for each in by_process.values() for block in each]
    calls = sum(map(len, every))
    if len(every) < 2:
        return None, None
    chance, processes = random.Random(1), list(by_process.values())
    drawn: list[list[float]] = [[], []]
    for _ in range(_DRAWS):
        taken = [
            block
            for blocks_of in chance.choices(processes, k=len(processes))
            for block in chance.choices(blocks_of, k=len(blocks_of))
        ]
        for place, value in enumerate(np.quantile(np.concatenate(taken), (HALF, MOST))):
            drawn[place].append(float(value))
    found = np.quantile(np.concatenate(every), (HALF, MOST))
    half, most = (
        Interval(float(np.quantile(values, 0.025)), float(point), float(np.quantile(values, 0.975)))
        for values, point in zip(drawn, found, strict=True)
    )
    return half, most if calls >= FEWEST else None


def speedup(original: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]) -> Interval:
    """The original's median call over the candidate's; pairs of blocks, which were made in turns, are drawn anew."""
    one, other = (np.array([float(np.median(each)) for each in blocks]) for blocks in (original, candidate))
    pairs = np.log(one[: len(other)] / other[: len(one)])
    drawn = np.random.default_rng(0).integers(0, len(pairs), (_RESAMPLES, len(pairs)))
    low, high = np.quantile(np.median(pairs[drawn], axis=1), (0.025, 0.975))
    return Interval(*(float(math.exp(each)) for each in (low, float(np.median(pairs)), high)))
