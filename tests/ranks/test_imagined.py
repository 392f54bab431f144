"""A rank that imagines the others: each says what it says, and what goes to them is noted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from overdrive.core.rank_notes import Note  # noqa: E402
from overdrive.ranks.imagined import ImaginedGroup  # noqa: E402
from overdrive.ranks.membership import Membership  # noqa: E402
from overdrive.ranks.mesh import Mesh  # noqa: E402

SIZE, RANK = 6, 3


def _never(sentence: str, store: object) -> None:
    raise AssertionError(sentence)


@pytest.fixture
def group() -> Iterator[ImaginedGroup]:
    made = ImaginedGroup(Membership(RANK, SIZE, 0, "nowhere", 1, agents_store=False), _never)
    yield made
    made.monitor.stop()


def noted(group: ImaginedGroup, operation: str) -> list[Note]:
    return [each for each in group.diary.notes if each.operation == operation and each.channel != "words"]


@pytest.mark.parametrize("thing", [{"a": [1, 2]}, {"long": "x" * 5000}])
def test_it_finds_out_itself_what_the_first_rank_tells(group: ImaginedGroup, thing: Any) -> None:
    assert group.tells and group.rank == RANK
    assert group.told_by_first(thing, "a thing") == thing
    assert group.from_first(2.5, "a number") == 2.5 and group.from_first(7, "a number") == 7
    assert group.of_all([1, 2], "numbers") == SIZE * [[1, 2]]


@pytest.mark.parametrize("length", [2, 5000])
def test_sums_and_gathers_are_of_its_own(group: ImaginedGroup, length: int) -> None:
    """Of small ones, which words carry, and of large ones."""
    own = torch.arange(length, dtype=torch.float32)
    assert torch.equal(group.sum_(own.clone(), "a sum"), SIZE * own)
    assert torch.equal(group.gather(own, 0, SIZE * [length], "all"), own.repeat(SIZE))
    sizes = [length - 1, *(SIZE - 1) * [length]]
    assert group.gather(own, 0, sizes, "all").shape == (sum(sizes),)
    large = length > 100
    assert [each.bytes for each in noted(group, "all_reduce")] == large * [4 * length]
    assert [each.bytes for each in noted(group, "all_gather")] == 2 * large * [4 * length * SIZE]


def test_what_is_begun_and_what_is_waited_for_is_noted_in_order(group: ImaginedGroup) -> None:
    before = len(group.diary.notes)
    first, second = group.begin_sum(torch.ones(3)), group.begin_sum(torch.ones(4))
    group.finish([second, first])
    told = [(each.operation, each.number) for each in group.diary.notes[before:]]
    one, two = (number for operation, number in told if operation)
    assert told == [("all_reduce", one), ("all_reduce", two), ("", two), ("", one)]
    assert {each.channel for each in noted(group, "all_reduce")} == {"gradients"}
    assert all(each.computed >= 0 for each in group.diary.notes)


def test_of_another_ranks_tensor_there_are_zeros(group: ImaginedGroup) -> None:
    own, other = torch.ones(4), torch.full((4,), float("nan"))
    group.broadcast(own, RANK, "a weight")
    group.broadcast(other, 0, "a weight")
    assert torch.equal(own, torch.ones(4)) and torch.equal(other, torch.zeros(4))


def test_rows_and_columns_are_noted_by_the_ranks_of_the_run(group: ImaginedGroup) -> None:
    mesh = Mesh(group, 2)  # 0 1 2, 3 4 5
    mesh.row.connect_stages()
    room = torch.full((5,), float("nan"))
    mesh.row.wait_for(mesh.row.begin_send(torch.ones(5), 1, 9), "a stage")
    mesh.row.wait_for(mesh.row.begin_receive(room, 2, 8), "a stage")
    mesh.column.finish([mesh.column.begin_sum(torch.ones(2))])
    (sent,), (received,), (summed,) = (noted(group, each) for each in ("send", "receive", "all_reduce"))
    assert (sent.members, sent.tag, received.members, received.tag) == ((3, 4), 9, (5, 3), 8)
    assert summed.members == (0, 3) and summed.channel == "column 0 gradients"
    assert torch.equal(room, torch.zeros(5))
    assert sent.channel == received.channel == "row 3 stages"
