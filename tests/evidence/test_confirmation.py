"""Simulated confirmations: how many pairs of processes they take, and what may be told of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.core.interval import Interval
from overdrive.evidence.confirmation import FEWEST, MOST, Spread, of_any_process, pairs_needed, spread_of, told
from overdrive.evidence.speed import Pair, Verdict, speedup, speedup_of_these, verdict
from tests.evidence.test_speed import duel


def published(count: int, gain: float, process_sd: float, processes: int, seed: int = 1) -> list[tuple[bool, bool]]:
    """Of simulated confirmations that came out FASTER: whether the raw and the told interval hold the gain."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        means = math.log(gain) + math.sqrt(2) * process_sd * rng.standard_normal(processes)
        interval = speedup([Pair(index, 1, math.exp(mean), 1.0, True) for index, mean in enumerate(means)])
        if verdict(interval) is Verdict.FASTER:
            shown = told(interval, processes)
            found.append((interval.low <= gain <= interval.high, shown.low <= gain <= shown.high))
    return found


@pytest.mark.parametrize(
    ("gain", "process_sd", "processes", "count"),
    [(1.05, 0.2, 8, 6000), (1.05, 0.05, 8, 2000), (1.05, 0.02, 3, 3000), (1.3, 0.1, 3, 2000), (2.0, 0.2, 4, 1500)],
)
def test_what_is_published_covers_the_truth_though_only_what_came_out_faster_is(
    gain: float, process_sd: float, processes: int, count: int
) -> None:
    shown = [told for _, told in published(count, gain, process_sd, processes)]
    assert len(shown) > 150 and sum(shown) / len(shown) >= 0.93


def test_without_the_correction_small_gains_on_rough_machines_would_be_told_too_high() -> None:
    raw = [raw for raw, _ in published(6000, 1.05, 0.2, 8)]
    assert sum(raw) / len(raw) < 0.7


@pytest.mark.parametrize(("processes", "clear"), [(3, 6.0), (4, 3.0), (8, 2.5)])
def test_a_gain_is_told_from_its_own_lower_end_where_it_is_clear(processes: int, clear: float) -> None:
    for half, own in ((0.99 / clear, True), (1.01 / clear, False)):
        interval = Interval(1.01 * math.exp(1 - half), 1.01 * math.e, 1.01 * math.exp(1 + half))
        shown = told(interval, processes)
        assert (shown == interval) is own
        assert shown.low == (interval.low if own else 1.01) and shown.high == interval.high


@pytest.mark.parametrize("low", [0.5, 1.0])
def test_what_is_not_faster_is_told_as_it_is(low: float) -> None:
    interval = Interval(low, 1.05, 1.05**2 / low)
    assert told(interval, 3) == interval


def test_the_number_of_pairs_follows_the_noise_seen_and_the_gain_to_be_shown() -> None:
    quiet, rough = Spread(variance=2 * 0.005**2), Spread(variance=2 * 0.1**2)
    assert pairs_needed(quiet, 2.0, 20) == FEWEST and pairs_needed(rough, 1.05, 20) == MOST
    assert FEWEST < pairs_needed(Spread(), 2.0, 20) < MOST
    assert pairs_needed(Spread(variance=2 * 0.01**2, block_variance=0.3**2), 1.5, 20) > pairs_needed(
        Spread(variance=2 * 0.01**2), 1.5, 20
    )


def test_the_spread_of_processes_is_found_in_duels_and_controls_together() -> None:
    rng = np.random.default_rng(2)
    sd = 0.1  # of a pair of processes

    def found(blocks_sd: float) -> float:
        duels = [duel(rng, 1.3, 3, 20, sd, blocks_sd) for _ in range(30)]
        return math.sqrt(spread_of(duel(rng, 1.0, 1, 40, sd, blocks_sd), duels).variance)

    assert found(0.01) == pytest.approx(sd, rel=0.25)
    assert found(0.2) == pytest.approx(sd, rel=0.3)  # what the noise of blocks explains is taken off
    assert spread_of([], []).variance == pytest.approx(0.0018)
    assert spread_of([], [duel(rng, 1.3, 1, 20, sd, 0.01)]).variance == pytest.approx(0.0018)  # one pair says nothing
    alike = [duel(rng, 1.3, 3, 20, 0.0, 0.05) for _ in range(30)]
    assert spread_of([], alike).variance < 0.02**2


def test_the_control_tells_how_far_it_lies_from_no_gain() -> None:
    control = duel(np.random.default_rng(3), 1.4, 1, 40, 0.0, 0.01)
    assert spread_of(control, []).variance > 2 * 0.2**2


def test_what_one_process_says_is_told_with_how_much_others_differ() -> None:
    pairs = duel(np.random.default_rng(4), 1.5, 1, 40, 0.0, 0.02)
    these = speedup_of_these(pairs)
    one, two = of_any_process(these, Spread(), 1), of_any_process(these, Spread(), 2)
    assert one.low < two.low < these.low and these.high < two.high < one.high
    assert one.estimate == pytest.approx(these.estimate)
    assert of_any_process(Interval(0.0, 1.2, math.inf), Spread(), 1).high == math.inf


@pytest.mark.parametrize("process_sd", [0.01, 0.03, 0.1])
def test_the_interval_of_any_process_covers_the_truth(process_sd: float) -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        sd = math.sqrt(2) * process_sd
        spread = spread_of(duel(rng, 1.0, 1, 40, sd, 0.03), [duel(rng, 1.2, 2, 20, sd, 0.03) for _ in range(6)])
        interval = of_any_process(speedup_of_these(duel(rng, 1.5, 1, 20, sd, 0.03)), spread, 1)
        hits += interval.low <= 1.5 <= interval.high
    assert hits / 200 >= 0.9
