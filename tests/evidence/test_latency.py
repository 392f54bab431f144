"""Percentiles of the times of calls, with intervals."""

from __future__ import annotations

import random

import numpy as np

from overdrive.evidence.latency import percentiles, speedup


def blocks(seed: int, processes: int = 3, per_process: int = 20, calls: int = 30, together: float = 0.0):
    """Exponential times of mean 1; `together`: the spread that the calls of a block have in common."""
    chance = random.Random(seed)
    return [
        (process, [chance.expovariate(1.0) * common for _ in range(calls)])
        for process in range(processes)
        for common in [chance.lognormvariate(0, together) for _ in range(per_process)]
    ]


def test_the_truth_is_within_the_interval() -> None:
    covered = [0, 0]
    for seed in range(40):
        for place, (found, truth) in enumerate(zip(percentiles(blocks(seed)), (0.6931, 4.6052), strict=True)):
            assert found is not None
            covered[place] += found.low <= truth <= found.high
    assert covered[0] >= 34 and covered[1] >= 34


def test_what_disturbs_whole_blocks_makes_it_wider() -> None:
    alone, shared = percentiles(blocks(1))[0], percentiles(blocks(1, together=0.5))[0]
    assert alone and shared and shared.high - shared.low > 1.5 * (alone.high - alone.low)


def test_of_few_calls_there_is_no_99th_percentile() -> None:
    half, most = percentiles(blocks(1, 1, 4, 5))
    assert half is not None and most is None
    assert percentiles([]) == (None, None) == percentiles([(0, [1.0])])


def test_a_speedup_is_of_medians_of_blocks_that_were_made_in_turns() -> None:
    rng = np.random.default_rng(0)
    drift = np.exp(rng.normal(0, 0.5, 40))  # of the machine: the same for both
    one, other = ([list(mean * d * rng.gamma(100, 0.01, 20)) for d in drift] for mean in (3e-3, 2e-3))
    found = speedup(one, other)
    assert found.low < 1.5 < found.high and found.high - found.low < 0.1
