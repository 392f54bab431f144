"""Simulated neighbours: pairs of blocks that they disturb are told from those that they do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.core.records import Block
from overdrive.evidence.neighbours import disturbed, others, share_crowded, share_disturbed, undisturbed
from overdrive.evidence.speed import Pair, speedup

BLOCK = 0.1  # seconds, quiet


def bursts(rng: np.random.Generator, share: float, seconds: float, step: float = 0.01) -> np.ndarray:
    """Whether a neighbour works, in steps of 10 ms: a Markov chain whose bursts last so long on average."""
    ends, begins = step / seconds, step / seconds * share / (1 - share)
    working, row = rng.random() < share, []
    for _ in range(4000):
        working = rng.random() >= ends if working else rng.random() < begins
        row.append(working)
    return np.array(row)


def block(load: np.ndarray, at: int, work: float, slowed: float) -> tuple[float, float, int]:
    """Seconds, the share of them that it waited, and where it ends, of a block that takes `work` seconds when quiet."""
    done, steps, waited = 0.0, 0, 0.0
    while done < work:
        busy = load[at + steps]
        done += 0.01 / slowed if busy else 0.01
        waited += 0.01 * (1 - 1 / slowed) if busy else 0.0
        steps += 1
    return 0.01 * steps, waited / (0.01 * steps), at + steps


def duel(
    rng: np.random.Generator, gain: float, share: float, slowed: tuple[float, float], count: int = 40
) -> list[Pair]:
    """A: many threads. B: few, and `gain` times as fast when nobody disturbs."""
    load, at, pairs = bursts(rng, share, 0.3), 0, []
    for _ in range(count):
        a_first = bool(rng.random() < 0.5)
        told: dict[bool, tuple[float, float]] = {}
        for is_a in (a_first, not a_first):
            work = (gain if is_a else 1.0) * BLOCK * math.exp(0.03 * rng.standard_normal())
            seconds, waited, at = block(load, at, work, slowed[0 if is_a else 1])
            told[is_a] = seconds, waited
        waits = (told[True][1], told[False][1])
        busy = tuple(1.0 if wait else 0.0 for wait in waits)
        pairs.append(Pair(0, 10, told[True][0], told[False][0], a_first, waits, (busy[0], busy[1])))
    return pairs


@pytest.mark.parametrize(("gain", "share"), [(1.2, 0.45), (1.0, 0.3), (1.0, 0.6)])
def test_a_neighbour_that_slows_one_side_more_does_not_change_the_ratio(gain: float, share: float) -> None:
    rng = np.random.default_rng(1)
    duels = [duel(rng, gain, share, (2.0, 1.5), 80) for _ in range(40)]
    ratio = float(np.mean([math.log(speedup(undisturbed(pairs)).estimate) for pairs in duels]))
    as_it_was = float(np.mean([math.log(speedup(pairs).estimate) for pairs in duels]))
    assert abs(ratio - math.log(gain)) < 0.01 < 0.025 < as_it_was - math.log(gain)


def test_where_a_neighbour_works_most_of_the_time_more_than_half_is_left_out() -> None:
    rng = np.random.default_rng(2)
    shares = [share_disturbed(duel(rng, 1.0, 0.6, (2.0, 1.5))) for _ in range(10)]
    assert np.median(shares) > 0.5


def pairs_with(waited: list[tuple[float, float]], by: float | None) -> list[Pair]:
    told = None if by is None else (by, by)
    return [Pair(0, 10, 1.0, 1.0, True, each, told) for each in waited]


def test_a_side_that_waits_for_itself_is_not_disturbed() -> None:
    rng = np.random.default_rng(3)
    steady = [(1.5 + 0.02 * float(rng.standard_normal()), 0.0) for _ in range(40)]  # four threads, two cores
    assert share_disturbed(pairs_with(steady, 1.0)) <= 0.1
    wild = [(1.5 + 0.3 * float(rng.standard_normal()), 0.0) for _ in range(40)]
    assert share_disturbed(pairs_with(wild, 0.02)) == 0  # nobody else was there
    assert share_disturbed(pairs_with(wild, 1.0)) > 0.2


def test_both_blocks_of_a_pair_go_though_only_one_was_disturbed() -> None:
    pairs = pairs_with([(0.0, 0.0)] * 8 + [(0.2, 0.0), (0.0, 0.2)], 1.0)
    assert undisturbed(pairs) == pairs[:8] and share_disturbed(pairs) == pytest.approx(0.2)


def test_where_nobody_tells_what_others_use_waiting_alone_decides() -> None:
    assert share_disturbed(pairs_with([(0.0, 0.0)] * 9 + [(0.2, 0.0)], None)) == pytest.approx(0.1)


def test_where_nobody_tells_how_long_a_block_waited_nothing_is_left_out() -> None:
    pairs = [Pair(0, 10, 1.0, 1.0, True)] * 10
    assert undisturbed(pairs) == pairs and share_disturbed(pairs) == 0 and others(pairs) is None
    assert share_disturbed([]) == 0


def test_each_process_has_what_is_usual_for_it() -> None:
    calm, crowded = pairs_with([(0.0, 0.0)] * 10, 1.0), pairs_with([(1.0, 0.0)] * 10, 1.0)
    both = [*calm, *(Pair(1, 10, 1.0, 1.0, True, each.waited, each.others) for each in crowded)]
    assert share_disturbed(both) == 0
    assert others(both) == 1.0


def test_the_only_pair_of_a_process_is_not_usual_by_itself() -> None:
    """Of the example beside a busy process it was one in which a side waited for all of its time."""
    calm = pairs_with([(0.0, 0.0)] * 10, 1.0)
    cut_short = Pair(1, 10, 0.6, 1.0, True, (0.8, 1.4), (1.0, 1.0))
    assert undisturbed([*calm, cut_short]) == calm


def test_pairs_in_which_cores_slow_each_other_down_do_not_change_the_ratio() -> None:
    def pair(number: int) -> Pair:
        share_a_core = number % 4 == 0  # then two threads take 1.4 times as long, and one thread as long as ever
        looked = (1.02, 1.75) if share_a_core else (1.04, 0.97)
        return Pair(0, 10, 1.4 if share_a_core else 1.0, 1.2, True, None, None, looked)

    pairs = [pair(number) for number in range(40)]
    assert share_crowded(pairs) == share_disturbed(pairs) == 0.25
    kept = speedup(undisturbed(pairs)).estimate
    assert kept == pytest.approx(1 / 1.2, abs=0.01) and speedup(pairs).estimate > kept + 0.005


def test_a_block_of_a_screening_in_which_they_do_is_disturbed() -> None:
    assert disturbed(Block(10, 10, 1.0, 0.0, crowded=1.7)) and disturbed(
        Block(10, 10, 1.0, 0.0, 0.2, others=1.0, waited=0.2)
    )
    assert not disturbed(Block(10, 10, 1.0, 0.0, crowded=1.2)) and not disturbed(Block(10, 10, 1.0, 0.0))
