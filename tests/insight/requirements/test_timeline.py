"""Steps played over a network, against sums made by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from overdrive.core.link import Link
from overdrive.core.rank_notes import STEP, Note
from overdrive.insight.requirements.timeline import played
from overdrive.machine.pool.curve import OverLink


@dataclass(frozen=True)
class Flat:
    """Every exchange takes a second for each byte, whatever it is."""

    busy: float = 0.0

    def seconds(self, operation: str, size: int, ranks: int) -> float:
        assert operation in ("all_reduce", "all_gather", "point_to_point") and ranks in (2, 64)
        return float(size)


BOTH = (0, 1)
ALL = tuple(range(64))


def begins(computed: float, number: int, size: int, channel: str = "calls", members: tuple[int, ...] = BOTH) -> Note:
    return Note(computed, "all_reduce", number, size, channel, members)


def waits(computed: float, number: int) -> Note:
    return Note(computed, "", number)


def sends(computed: float, number: int, size: int, tag: int = 1, members: tuple[int, int] = BOTH) -> Note:
    return Note(computed, "send", number, size, "stages", members, tag)


def receives(computed: float, number: int, size: int, tag: int = 1, members: tuple[int, int] = BOTH) -> Note:
    return Note(computed, "receive", number, size, "stages", members, tag)


def over(computed: float) -> Note:
    return Note(computed, STEP)


def test_who_comes_first_waits_for_the_other_and_for_the_network() -> None:
    notes = {0: [begins(1, 1, 5), waits(0, 1), over(2)], 1: [begins(4, 1, 5), waits(0, 1), over(1)]}
    found = played(notes, Flat())
    assert found.steps == (4 + 5 + 2,)
    assert found.computing == ((3 + 5) / 2,)


def test_what_goes_on_beside_the_computing_costs_what_is_longer() -> None:
    for beside, step in ((3.0, 1 + 5 + 1), (7.0, 1 + 7 + 1)):
        notes = {0: [begins(1, 1, 5), waits(beside, 1), over(1)]}
        assert played(notes, Flat()).steps == (step,)


def test_where_the_same_processor_carries_it_it_costs_both() -> None:
    notes = {0: [begins(1, 1, 5), waits(7, 1), over(1)]}
    assert played(notes, Flat(busy=0.5)).steps == (1 + 7 + 0.5 * 5 + 1,)
    at_once = {0: [begins(1, 1, 5), waits(0, 1), over(1)]}
    assert played(at_once, Flat(busy=1.0)).steps == (7,), "nothing was computed meanwhile"


def test_a_channel_carries_one_thing_after_the_other_and_channels_go_beside_each_other() -> None:
    same = {0: [begins(0, 1, 5), begins(0, 2, 5), waits(0, 2), over(0)]}
    assert played(same, Flat()).steps == (10,)
    others = {0: [begins(0, 1, 5), begins(0, 2, 5, "gradients"), waits(0, 1), waits(0, 2), over(0)]}
    assert played(others, Flat()).steps == (5,)


def test_ranks_that_are_not_there_are_as_the_one_that_is() -> None:
    notes = {
        0: [begins(1, 1, 5, members=ALL), waits(0, 1), over(2), begins(3, 2, 5, members=ALL), waits(0, 2), over(0)]
    }
    assert played(notes, Flat()).steps == (8, 8)


def test_a_second_stage_waits_for_the_first_and_its_gradient_goes_back() -> None:
    # Two micro-batches of 3 s in the first stage, 2 s in the second; back as long; a transfer takes 1 s.
    back = (1, 0)
    first = [sends(3, 1, 1), sends(3, 2, 1, 2)]
    first += [receives(0, 3, 1, 3, back), waits(0, 3), receives(3, 4, 1, 4, back), waits(0, 4), over(3)]
    second = [receives(0, 1, 1), waits(0, 1), receives(2, 2, 1, 2), waits(0, 2)]
    second += [sends(4, 3, 1, 3, back), sends(2, 4, 1, 4, back), over(0)]
    # Forward: 3, 6 in the first; the second has them at 4 and 7, and is done at 6 and 9. Back: 11, 13 there; the first
    # has them at 12 and 14, and is done at 15 and 18.
    found = played({0: first, 1: second}, Flat())
    assert found.steps == (18,)
    assert found.computing == ((12 + 8) / 2,)


def test_of_a_message_from_a_rank_that_is_not_there_only_the_way_counts() -> None:
    assert played({1: [receives(2, 1, 3), waits(0, 1), over(1)]}, Flat()).steps == (6,)


def test_what_began_before_the_first_note_is_over() -> None:
    assert played({0: [waits(2, 7), over(1)]}, Flat()).steps == (3,)


def test_ranks_that_wait_for_each_other_are_found() -> None:
    notes = {0: [receives(0, 1, 1, members=(1, 0)), waits(0, 1), over(0)], 1: [receives(0, 1, 1), waits(0, 1), over(0)]}
    with pytest.raises(ValueError, match="wait for each other"):
        played(notes, Flat())


# -- ranks that stand for many, each with times of its own -------------------------------------------------------------


def test_of_many_the_last_one_is_waited_for_and_what_hides_hides_for_each() -> None:
    notes = {0: [begins(0, 1, 5, members=ALL), waits(0, 1), over(0)]}
    times = {0: np.array([1.0, 4.0, 2.0]), 1: np.array([9.0, 0.0, 6.0]), 2: np.array([1.0, 3.0, 1.0])}
    # All are there at 4; it is over at 9. They come to it at 10, 4 and 8, and are done at 11, 12 and 10.
    found = played(notes, Flat(), copies=3, lasting=lambda rank, place: times[place])
    assert found.steps == (12,)
    assert found.computing == (pytest.approx((11 + 7 + 9) / 3),)


def test_a_rank_that_is_late_in_one_step_and_one_in_the_next_are_both_waited_for() -> None:
    notes = {
        0: [begins(0, 1, 5, members=ALL), waits(0, 1), over(0), begins(0, 2, 5, members=ALL), waits(0, 2), over(0)]
    }
    late = {0: np.array([7.0, 1.0]), 3: np.array([1.0, 9.0])}
    found = played(notes, Flat(), copies=2, lasting=lambda rank, place: late.get(place, np.zeros(2)))
    assert found.steps == (7 + 5, 9 + 5)


def test_rows_of_stages_wait_within_themselves_and_meet_where_their_gradients_are_summed() -> None:
    column = (0, 2)  # the first stage of both rows
    first = [sends(0, 1, 1), begins(0, 2, 5, "column", column), waits(0, 2), over(0)]
    second = [receives(0, 1, 1), waits(0, 1), over(0)]
    times = {(0, 0): np.array([2.0, 10.0]), (1, 1): np.array([0.0, 0.0]), (1, 2): np.array([3.0, 30.0])}
    found = played({0: first, 1: second}, Flat(), 2, lambda rank, place: times.get((rank, place), np.zeros(2)))
    # The first row's message is there at 3, the second's at 11: the second stages are done at 6 and 41. The first
    # stages meet at 10, and are done at 15.
    assert found.steps == (41,)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather"])
def test_a_ring_is_over_when_the_last_has_come_and_all_of_it_has_gone_round(operation: str) -> None:
    """Message by message: a rank sends on what it has, once it and what its neighbour sent are there."""
    ranks, size, link = 7, 7_000, Link(1e6, 3e-4, "")
    network = OverLink(link)
    came = np.random.default_rng(3).exponential(0.02, ranks)
    there = came.copy()
    for _ in range((2 if operation == "all_reduce" else 1) * (ranks - 1)):
        there = np.maximum(there, np.roll(there, 1)) + link.latency_seconds + size / ranks / link.bytes_per_second
    members = tuple(range(ranks))
    notes = {0: [Note(0.0, operation, 1, size, "calls", members), waits(0, 1), over(0)]}
    found = played(notes, network, ranks, lambda rank, place: came if place == 0 else np.zeros(ranks))
    assert found.steps == (pytest.approx(there.max()),) and np.ptp(there) == pytest.approx(0)
