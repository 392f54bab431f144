"""Rows: mirror images, balanced, apart where two exclude each other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from overdrive.evidence.screening import Design, Factor, on_in, on_off
from overdrive.evidence.screening.hadamard import columns
from tests.evidence.screening.simulated import names, switches

THREADS = Factor("threads", ("1 thread", "2 threads", "4 threads"))


@pytest.mark.parametrize("factors", [1, 5, 11, 12, 19, 20, 25, 34, 40, 50, 63])
def test_columns_are_balanced_and_orthogonal(factors: int) -> None:
    signs = columns(factors)
    rows = len(signs)
    assert signs.shape[1] >= factors and rows <= factors + 16
    assert np.array_equal(signs.T @ signs, rows * np.eye(signs.shape[1]))
    assert not signs.sum(axis=0).any()


def test_the_second_row_is_the_mirror_image() -> None:
    design, rng = switches("a", "b", "c"), np.random.default_rng(0)
    for _ in range(50):
        first, second = design.next_pair(["a", "b", "c"], rng)
        assert all(one + other == 1 for one, other in zip(first, second, strict=True))


def test_effects_are_told_apart_with_the_least_error_after_a_cycle() -> None:
    design, rng = switches(*(f"c{at}" for at in range(23))), np.random.default_rng(0)
    pairs = [design.next_pair(names(design), rng) for _ in range(24)]
    x = np.array([np.subtract(first, second) for first, second in pairs])
    assert np.array_equal(x.T @ x, 24 * np.eye(23))


def test_other_cycles_have_other_columns() -> None:
    """Else an interaction that looks like another would do so for ever."""
    design, rng = switches(*(f"c{at}" for at in range(11))), np.random.default_rng(0)
    products = []
    for _ in range(2):
        pairs = [design.next_pair(names(design), rng) for _ in range(12)]
        x = np.array([np.subtract(first, second) for first, second in pairs])
        products.append(x[:, [0]].T * x[:, [1]].T @ x)
    assert not np.array_equal(products[0], products[1])


def test_a_factor_of_levels_folds_over_between_all_pairs_of_them_equally_often() -> None:
    design, rng = Design([THREADS, on_off("a")]), np.random.default_rng(0)
    pairs = [design.next_pair(names(design), rng) for _ in range(60)]
    counts = Counter(tuple(sorted((first[0], second[0]))) for first, second in pairs)
    assert set(counts.values()) == {10} and len(counts) == 6
    assert all(first[1] + second[1] == 1 for first, second in pairs)


def test_seeds_repeat() -> None:
    def rows(seed: int) -> list[object]:
        design, rng = switches("a", "b", "c", "d"), np.random.default_rng(seed)
        return [design.next_pair(names(design), rng) for _ in range(20)]

    assert rows(1) == rows(1) != rows(2)


def test_what_left_stays_off() -> None:
    design, rng = Design([on_off("a"), THREADS]), np.random.default_rng(0)
    for _ in range(5):
        design.next_pair(names(design), rng)
    seen: set[str] = set()
    for _ in range(40):
        for row in design.next_pair(["a", "1 thread"], rng):
            seen.update(on_in(row, design.factors))
    assert seen == {"a", "1 thread"}


def test_faults_are_said() -> None:
    with pytest.raises(ValueError, match="there twice"):
        switches("a", "a")
    with pytest.raises(ValueError, match="no factor has the label b"):
        switches("a").next_pair(["b"], np.random.default_rng(0))
    with pytest.raises(ValueError, match="has no level"):
        Factor("a", ())
