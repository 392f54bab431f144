"""Marks of requests: ranks that ask for the same exchange it, others learn who asks for what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from overdrive.ranks.requests import Differing, PartFailed, Requests
from overdrive.ranks.slots import MessageSlots


class Board:
    """Two threads that gather from each other, in place of a process group."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=20)
        self.sent: dict[int, torch.Tensor] = {}

    def seat(self, rank: int) -> Any:
        board = self

        class Seat:
            def _allgather_base(self, received: torch.Tensor, sent: torch.Tensor) -> Seat:
                board.sent[rank] = sent.clone()
                board.barrier.wait()
                received.copy_(torch.cat([board.sent[0], board.sent[1]]))
                board.barrier.wait()
                return self

            def wait(self) -> None: ...

        return Seat()


def both(*asked: tuple[Any, ...], data: bytes = b"", **options: bool) -> list[Any]:
    """What `meet` came to on each of two ranks, with the bytes of rank 1."""
    board = Board()

    def one(rank: int) -> Any:
        requests = Requests(MessageSlots(board.seat(rank), 2), 2)
        requests.put(bytes([rank]) * 3 + data)
        try:
            return requests.meet(*asked[rank], **options), requests.taken(1, 3 + len(data))
        except Differing as differing:
            return str(differing)

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(one, range(2))]


def test_ranks_that_ask_for_the_same_have_what_was_sent() -> None:
    found = both(*[(7, 3, "gather", "a model's result", 3)] * 2)
    assert found == [([3, 3], b"\1\1\1")] * 2
    size = Requests(MessageSlots(None, 2), 2).room
    room = b"\2" * (size - 3)
    assert both(*[(7, 3, "gather", "a model's result", size)] * 2, data=room)[0][1] == b"\1\1\1" + room


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ((7, 3, "float", "a number", 8), "rank 0 asks for a result in step 4, and rank 1 for a number in step 4"),
        ((7, 5, "gather", "a sum", 8), "rank 0 asks for a result in step 4, and rank 1 for a sum in step 6"),
        ((7, 3, "gather", "a result", 16), "(request 7: gather, 8 bytes), and rank 1 for a result in step 4 (request"),
        ((8, 3, "gather", "a result", 8), "(request 7: gather, 8 bytes), and rank 1 for a result in step 4 (request 8"),
    ],
)
def test_ranks_that_ask_for_different_things_learn_so(other: tuple[Any, ...], sentence: str) -> None:
    found = both((7, 3, "gather", "a result", 8), other)
    assert found[0] == found[1] and sentence in found[0]


def test_sizes_may_differ_where_one_rank_alone_has_something_to_tell() -> None:
    asked = (7, 3, "words", "how a call is divided", 3), (7, 3, "words", "how a call is divided", 0)
    assert both(*asked, sizes_differ=True)[0][0] == [3, 0]
    assert "rank 1 for how a call" in both(*asked)[0]


@pytest.mark.parametrize(("hows", "alike"), [(("", ""), True), (("again", "again"), True), (("again", ""), False)])
def test_a_rank_whose_part_fails_tells_the_others_why_and_how(hows: tuple[str, str], alike: bool) -> None:
    board = Board()

    def one(rank: int) -> Any:
        requests = Requests(MessageSlots(board.seat(rank), 2), 2)
        told = []
        for failing in ((1,), (0, 1)):
            try:
                told.append(
                    requests.fail(7, 3, "too few", hows[rank])
                    if rank in failing
                    else requests.meet(7, 3, "sum", "a", 8)
                )
            except PartFailed as failed:
                told.append(str(failed))
        return told

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(one, range(2))] == [["too few", alike], [False, alike]]


def test_each_piece_of_what_is_summed_is_asked_for() -> None:
    """A rank that has failed after the first tells so in its slot, which is no part of the sum."""
    board = Board()
    own = torch.ones(2000)  # four pieces

    def one(rank: int) -> Any:
        requests = Requests(MessageSlots(board.seat(rank), 2), 2)
        number = iter(range(7, 9)) if rank else iter([7] * 4)
        meet = lambda: requests.meet(next(number), 3, "sum", "a sum", own.nbytes)  # noqa: E731
        pieces = requests._pieces(own.view(torch.uint8), range(2), meet)
        try:
            if rank:
                next(pieces)
                return requests.fail(8, 3, "no memory")
            return requests.summed(own, range(2), meet)
        except Differing as differing:
            return str(differing)

    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(one, range(2))]
    assert (
        found[0]
        == "rank 0 asks for a sum in step 4, and rank 1 for the undoing of a call, of which its part failed, in step 4"
    )
    assert found[1] is False


@pytest.mark.parametrize("sums", [True, False])
def test_memory_is_found_before_ranks_meet(sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(MessageSlots(None, 2), 2)
    own = torch.ones(2000, dtype=torch.float32 if sums else torch.uint8)
    met: list[int] = []

    def meet() -> None:
        met.append(1)
        for name in ("stack", "empty", "empty_like"):
            monkeypatch.setattr(torch, name, lambda *_, out=None, **__: out if out is not None else met.append(2))

    (requests.summed if sums else requests.gathered)(own, range(2), meet)
    assert set(met) == {1}
