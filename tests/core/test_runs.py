"""Rows cut into equal runs: against every way to cut them."""

from __future__ import annotations

import itertools
import random

import pytest

from overdrive.core.runs import equal_runs


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_largest_run_is_as_small_as_can_be(count: int) -> None:
    chance = random.Random(count)
    for _ in range(40):
        sizes = [chance.choice([1, 2, 5, 40]) for _ in range(chance.randint(count, 8))]
        found = equal_runs(sizes, count)
        assert found is not None and found == sorted(found) and set(found) == set(range(count))
        cuts = itertools.combinations(range(1, len(sizes)), count - 1)
        best = min(max(sum(sizes[a:b]) for a, b in itertools.pairwise((0, *places, len(sizes)))) for places in cuts)
        assert max(sum(size for size, run in zip(sizes, found, strict=True) if run == each) for each in found) == best


def test_too_few() -> None:
    assert equal_runs([3], 2) is None
