"""What is counted of the exchanges of ranks, which `doctor`'s figures are laid beside; and how requests are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from overdrive.ranks.imagined import ImaginedGroup
from overdrive.ranks.membership import Membership

SIZE = 4


@pytest.fixture
def group() -> Any:
    made = ImaginedGroup(Membership(1, SIZE, 0, "nowhere", 1, agents_store=False), lambda sentence, store: None)
    yield made
    made.monitor.stop()


def counted(group: Any, act: Callable[[], object]) -> dict[str, int]:
    before = group.tally.so_far()
    act()
    return dict(group.tally.so_far().since(before).counts)


@pytest.mark.parametrize("members", [range(SIZE), (1, 2)])
def test_what_goes_by_messages_is_a_slot_of_all_ranks_and_what_finds_no_room_in_it(group: Any, members: Any) -> None:
    """All ranks meet, also where parts of them exchange something."""
    slots = f"all_gather {SIZE * group._requests.room}"
    some = group.part("row", [*members])
    few, many = torch.zeros(8, dtype=torch.uint8), torch.zeros(10_000, dtype=torch.uint8)
    of_each = [len(few)] * len(members)
    assert counted(group, lambda: some.gather(few, 0, of_each, "a")) == {slots: 1}
    assert counted(group, lambda: some.sum_(few, "a")) == {slots: 1}
    assert counted(group, lambda: some.sum_(many, "a")) == {slots: 1, "all_reduce 10000": 1}
    whole = torch.zeros(len(members) * len(many), dtype=torch.uint8)
    gathered = {slots: 1, f"all_gather {len(whole)}": 1}
    assert counted(group, lambda: some.gather_into(whole, many, "a")) == gathered
    assert counted(group, lambda: some.gather(many, 0, [len(many)] * len(members), "a")) == gathered


def test_what_goes_by_memory_is_counted_once_and_as_a_whole(group: Any) -> None:
    """However many slots it fills; a tensor that goes another way is counted there."""
    group.tally.by_memory = True
    many = torch.zeros(10_000, dtype=torch.uint8)
    assert len(many) > 2 * group._requests.room
    in_slots = {f"all_gather {SIZE * len(many)}": 1}
    assert counted(group, lambda: group.gather(many, 0, [len(many)] * SIZE, "a")) == in_slots
    assert counted(group, lambda: group.sum_(many, "a")) == in_slots
    whole = torch.zeros(SIZE * len(many), dtype=torch.uint8)
    assert counted(group, lambda: group.gather_into(whole, many, "a")) == {"all_gather 0": 1, **in_slots}
    assert counted(group, lambda: group.of_each(1.0, "a")) == {"all_gather 0": 1}


def test_a_rank_that_fails_before_it_has_asked_tells_so_in_the_place_of_that(group: Any) -> None:
    """The others wait for what it would have asked for: who counts it would tell so in the next place."""
    group.may_undo, number = True, group.monitor.number
    with pytest.raises(MemoryError), group._waiting("a"):
        raise MemoryError
    assert group.monitor.number == number
    with pytest.raises(MemoryError), group._waiting("a"):
        group._meet("gather", "a", 8)
        raise MemoryError
    assert group.monitor.number == number + 1
