"""Runs that lose ranks, against sums by hand and Daly's formula."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import numpy as np
import pytest

from overdrive.core.unlike_ranks import Failures, Survival
from overdrive.insight.requirements.failures import Back, Ran, cost_of, ran, survival_of
from overdrive.survive.interval import FIRST, MOST_LOST, SnapshotInterval

FREE = Survival(0.0, 0.0, 0.0)


def run(gaps: list[float], survival: Survival = FREE, every: float = 10.0, most_lost: int = MOST_LOST) -> Ran:
    """100 steps of a second."""
    return ran(100, 1.0, survival, SnapshotInterval(every), iter(gaps), most_lost)


def test_a_run_without_failures_costs_its_snapshots() -> None:
    assert run([]) == Ran(100 + 10 * 0.0, 0, True)
    assert run([], Survival(0.5, 20, 1)) == Ran(100 + 10 * 0.5, 0, True)


def test_a_lost_rank_costs_the_way_from_the_snapshot_the_start_and_the_steps_that_are_skipped() -> None:
    """Lost at 34: snapshots were taken at 10, 20, 30. It starts, skips 30 steps and makes 70."""
    assert run([34.0]) == Ran(34 + 70, 1, True)
    found = run([34.0], Survival(0.5, 20, 0.1))
    # With half a second for each, three were taken by then, too; seven are to come.
    assert (found.seconds, found.lost, found.end) == (pytest.approx(34 + 20 + 30 * 0.1 + 70 + 7 * 0.5), 1, True)


def test_one_that_is_lost_on_the_way_back_costs_the_way_so_far() -> None:
    found = run([34.0, 21.0], Survival(0.5, 20, 0.1))
    assert found.seconds == pytest.approx(34 + 21 + 20 + 3 + 70 + 7 * 0.5) and found.lost == 2


def test_what_was_made_after_a_snapshot_that_was_not_finished_is_lost() -> None:
    survival = Survival(0.5, 0, 0)
    assert run([31.4], survival).seconds == pytest.approx(31.4 + 80 + 8 * 0.5), "the third was finished at 31.5"
    assert run([31.6], survival).seconds == pytest.approx(31.6 + 70 + 7 * 0.5)


def test_too_many_in_a_row_without_a_snapshot_end_the_run() -> None:
    assert run([5.0] * MOST_LOST).end
    assert run([5.0] * (MOST_LOST + 1)) == Ran(5.0 * (MOST_LOST + 1), MOST_LOST + 1, False)
    assert run([5.0] * MOST_LOST + [15.0] + [5.0] * (MOST_LOST - 1)).end, "a snapshot begins the count anew"


@pytest.mark.parametrize("mtbf", [30.0, 200.0])
def test_the_mean_of_many_runs_is_dalys(mtbf: float) -> None:
    """Daly 2006, equation 13: M exp(R/M) (exp((T + C)/M) - 1) for each of the intervals; the last has no snapshot."""
    survival, every, chance = Survival(0.5, 3.0, 0.0), 10.0, np.random.default_rng(1)

    def gaps() -> Iterator[float]:
        while True:
            yield float(chance.exponential(mtbf))

    runs = [ran(1005, 0.1, survival, SnapshotInterval(every), gaps(), most_lost=10**6) for _ in range(2000)]
    segments = [every + survival.snapshot] * 10 + [0.5]
    expected = sum(mtbf * math.exp(survival.start / mtbf) * math.expm1(each / mtbf) for each in segments)
    assert statistics.fmean(each.seconds for each in runs) == pytest.approx(expected, rel=0.03)


def test_what_a_run_of_so_many_ranks_loses() -> None:
    """Few failures: each costs half of an interval and the start."""
    survival = Survival(0.01, 10.0, 0.0)
    failures = Failures(mtbf=64e6, steps=100_000, survival=survival)
    found = cost_of(failures, 64, 1.0)
    every = SnapshotInterval(None, 1e6)
    every.took(survival.snapshot)
    assert found.ends == 1 and found.lost == pytest.approx(0.1, abs=0.1)
    snapshots = 1 + (100_000 - FIRST) // every.seconds
    lost = found.lost * (every.seconds + survival.start)
    assert found.seconds is not None
    assert 0 <= found.seconds - (100_000 + snapshots * survival.snapshot) <= lost


def test_ranks_that_fail_sooner_than_one_snapshot_is_taken_have_no_end() -> None:
    found = cost_of(Failures(mtbf=4096.0, steps=10_000, survival=FREE), 4096, 1.0)  # one a second
    assert (found.seconds, found.ends) == (None, 0.0) and found.lost == MOST_LOST + 1


def test_the_same_question_has_the_same_answer() -> None:
    failures = Failures(3600.0 * 64, 50_000, Survival(0.1, 20, 0.001))
    assert cost_of(failures, 64, 0.5) == cost_of(failures, 64, 0.5)


def test_a_start_and_a_skipped_step_are_told_from_runs_that_went_on() -> None:
    found = survival_of(0.2, [Back(101, 4.0, 5.0), Back(301, 4.2, 7.2)])
    assert found is not None and (found.snapshot, found.start, found.replay) == (
        0.2,
        pytest.approx(4.1),
        pytest.approx(0.01),
    )
    assert survival_of(0.2, [Back(1, 4.0, 4.0)]) is None and survival_of(0.2, []) is None
