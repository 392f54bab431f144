"""Steps of ranks that are not alike, against closed forms and sums by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from overdrive.core.rank_notes import STEP, Note
from overdrive.core.unlike_ranks import Slow
from overdrive.insight.requirements.unlike import longest_of, step_of


@dataclass(frozen=True)
class Takes:
    each: float = 0.0
    busy: float = 0.0

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        return self.each


def notes_of(steps: Sequence[float], ranks: int, beside: float = 0.0, size: int = 8) -> list[Note]:
    """Each computes, begins an exchange with all others, computes beside it, and waits."""
    found = []
    for number, seconds in enumerate(steps):
        found += [Note(seconds, "all_reduce", number, size, "calls", tuple(range(ranks)))]
        found += [Note(beside, "", number), Note(0.0, STEP)]
    return found


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_slowest_of_n_whose_steps_are_exponential(ranks: int) -> None:
    """The mean of the largest of N is that of one times 1 + 1/2 + ... + 1/N."""
    count = 3000
    steps = [-math.log(1 - (place + 0.5) / count) for place in range(count)]
    found = step_of({0: notes_of(steps, ranks)}, Takes(), ranks)
    assert found.computing == pytest.approx(1.0, rel=0.01) and found.network == 0
    assert found.computing + found.slowest == pytest.approx(sum(1 / n for n in range(1, ranks + 1)), rel=0.05)


def test_of_very_many_each_step_has_the_longest_that_was_seen() -> None:
    steps = [1.0, 1.1, 1.5, 1.2, 1.0, 1.2, 1.1, 1.1]
    found = step_of({0: notes_of(steps, 4096)}, Takes(0.5), 4096)
    assert found.computing == pytest.approx(1.15) and found.network == pytest.approx(0.5)
    assert found.slowest == pytest.approx(1.5 - 1.15)
    assert longest_of(notes_of(steps, 2)) == (8, pytest.approx(1.5 / 1.1))


def test_ranks_that_are_alike_do_not_wait_for_the_slowest() -> None:
    found = step_of({0: notes_of([2.0] * 5, 64, beside=3.0)}, Takes(4.0), 64)
    assert (found.computing, found.network, found.slowest) == (5.0, 1.0, 0.0)


@pytest.mark.parametrize(("share", "ranks"), [(0.01, 8), (0.01, 512), (0.25, 4)])
def test_one_slow_rank_slows_all_as_often_as_there_is_one(share: float, ranks: int) -> None:
    found = step_of({0: notes_of([2.0] * 5, ranks)}, Takes(1.0), ranks, Slow(share, 1.5))
    assert found.slowest == pytest.approx((1 - (1 - share) ** ranks) * 2.0 * 0.5)
    assert (found.computing, found.network) == (2.0, 1.0)


def test_a_slow_rank_hides_nothing_of_what_others_wait_for() -> None:
    """It begins at 4 instead of 2, computes 6 beside the exchange instead of 3: 10 in all, where the others take 6."""
    found = step_of({0: notes_of([2.0] * 5, 4, beside=3.0)}, Takes(4.0), 4, Slow(1.0, 2.0))
    assert found.computing + found.network == 6.0 and found.slowest == 4.0


def test_steps_that_do_more_are_drawn_among_themselves() -> None:
    """Every fourth has another exchange, and takes longer: it comes as often as it was noted."""
    plain = notes_of([1.0], 4096)
    longer = notes_of([3.0], 4096, size=99)
    found = step_of({0: (plain * 3 + longer) * 4}, Takes(), 4096)
    assert (found.computing, found.slowest) == (1.5, 0.0)


def test_of_ranks_that_were_noted_together_each_draws_of_its_own() -> None:
    notes = {0: notes_of([1.0] * 6, 2), 1: notes_of([3.0, 1.0] * 3, 2)}
    found = step_of(notes, Takes(), 2)
    assert found.computing == pytest.approx((1 + 2) / 2)
    assert 1.0 <= found.computing + found.network + found.slowest <= 3.0
