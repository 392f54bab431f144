"""A rank of a run whose others are imagined: each says, at once, what this one says.

It computes what it would compute as one of so many, and notes what it would exchange with the others. So it is measured
what a rank does, however many there are, and what a network adds can be reckoned afterwards. Its numbers are wrong, and
of the right shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.core.rank_notes import STEP, Note
from overdrive.ranks.group import Group
from overdrive.ranks.membership import Membership

_PAGE = 4096  # bytes


class Diary:
    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._count = 0
        self._since = time.perf_counter()

    def note(self, operation: str, **told: Any) -> int:
        """Returns its number."""
        self._count += operation not in ("", STEP)
        told.setdefault("number", self._count)
        self.notes.append(Note(time.perf_counter() - self._since, operation, **told))
        return self._count

    def goes_on(self) -> None:
        """The rank computes again: what was done meanwhile stands for the network."""
        self._since = time.perf_counter()


class ImaginedGroup(Group):
    """Attributes: `diary`: of the whole run, also in a part of its ranks."""

    diary: Diary

    def __init__(self, membership: Membership, end: Callable[[str, Any], None]) -> None:
        self.diary = Diary()
        super().__init__(membership, end)
        self.tells = True

    def _stores(self, membership: Membership) -> tuple[Any, Any]:
        store = _Store()
        return store, store

    def _await_all(self, place: str) -> None:
        """Nobody else comes."""

    def _share_memory(self) -> None:
        """What passes between the machines of a plan is to be noted."""

    def _on_cpu(self, purpose: str) -> Any:
        return _Echo(self.diary, self._name + purpose, tuple(self._members), self.rank)

    def _on(self, tensor: torch.Tensor, on_cpu: Any, purpose: str = "calls") -> Any:
        return on_cpu


class _Echo:
    """Stands for a process group of PyTorch's, with those of its methods that `Group` uses."""

    def __init__(self, diary: Diary, name: str, members: tuple[int, ...], rank: int) -> None:
        self._diary, self._name, self._members, self._rank = diary, name, members, rank

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> _Work:
        (tensor,) = tensors
        work = self._begun("all_reduce", tensor.nbytes)
        tensor.mul_(len(self._members))
        return work.goes_on()

    def _allgather_base(self, whole: torch.Tensor, own: torch.Tensor) -> _Work:
        _touch(whole)
        work = self._begun("all_gather", whole.nbytes)
        parts = whole.view(len(self._members), -1)
        parts.copy_(own.reshape(1, -1).clone().expand_as(parts))
        return work.goes_on()

    def broadcast(self, tensor: Any, source: int | None = None) -> _Work:
        """`source`: None where what is told is the same on this rank already."""
        own = tensor[0] if source is None else tensor
        work = self._begun("broadcast", own.nbytes)
        if source not in (None, self._rank):
            own.zero_()
        return work.goes_on()

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int) -> _Work:
        way = self._members[self._rank], self._members[to]
        return self._begun("send", tensors[0].nbytes, way, tag).goes_on()

    def recv(self, rooms: Sequence[torch.Tensor], source: int, tag: int) -> _Work:
        way = self._members[source], self._members[self._rank]
        _touch(rooms[0])
        work = self._begun("receive", rooms[0].nbytes, way, tag)
        rooms[0].zero_()
        return work.goes_on()

    def _begun(self, operation: str, size: int, members: tuple[int, ...] = (), tag: int = 0) -> _Work:
        members = members or self._members
        number = self._diary.note(operation, bytes=size, channel=self._name, members=members, tag=tag)
        return _Work(self._diary, number)


def _touch(room: torch.Tensor) -> None:
    """Have the system give it its memory, which is this rank's work: networks are measured with some that is there."""
    if room.device.type == "cpu":
        room.view(-1).view(torch.uint8)[::_PAGE].add_(0)


class _Work:
    def __init__(self, diary: Diary, number: int) -> None:
        self._diary, self._number = diary, number

    def goes_on(self) -> _Work:
        self._diary.goes_on()
        return self

    def wait(self) -> None:
        self._diary.note("", number=self._number)
        self._diary.goes_on()

    def is_completed(self) -> bool:
        """Who asks, asks until it is."""
        self.wait()
        return True


class _Store:
    """What a store of PyTorch's is asked for, in this process alone."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self._held[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self._held[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(each in self._held for each in keys)

    def add(self, key: str, amount: int) -> int:
        total = int(self._held.get(key, b"0")) + amount
        self._held[key] = str(total).encode()
        return total
