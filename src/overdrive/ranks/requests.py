"""Requests between ranks, each with a mark: what is asked for, and the how manieth it is.

Two ranks that ask for different things do not meet in one sum or gather: gloo ends both processes then, from within
C++, without a word. So each request begins with the exchange of a slot of fixed size. It holds the mark and, where
there is room, what is asked for: small requests take one message as before, large ones more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.ranks.slots import Slots

_HEAD = struct.Struct("<qqq16s88s")  # 128 bytes: what follows lies where a tensor of any kind may
_FAILED = "failure"  # the kind of request by which a rank tells that its part of a call failed


class Differing(Exception):
    """Ranks ask for different things; the message names two of them, the step of each, and what it asks for.

    Attributes:
        in_step: whether each has asked for as many things before.
    """

    def __init__(self, sentence: str, in_step: bool) -> None:
        super().__init__(sentence)
        self.in_step = in_step


class PartFailed(BaseException):
    """Another rank's part of a call failed: this one's is to be undone, too. The message is the other's reason. No
    `Exception`, so that nobody takes it for the program's own."""


@dataclass(frozen=True)
class _Mark:
    number: int
    step: int
    size: int
    kind: str
    what: str

    @classmethod
    def read(cls, data: bytes) -> _Mark:
        number, step, size, kind, what = _HEAD.unpack(data)
        return cls(number, step, size, *(each.rstrip(b"\0").decode(errors="replace") for each in (kind, what)))

    def words(self, beside: _Mark) -> str:
        """`beside`: the mark that it is not the same as."""
        same = (self.what, self.step) == (beside.what, beside.step)
        more = f" (request {self.number}: {self.kind}, {self.size} bytes)" if same else ""
        what = "the undoing of a call, of which its part failed," if self.kind == _FAILED else self.what
        return f"{what} in step {self.step + 1}{more}"


class Requests:
    """Attributes: `room`: bytes that a slot has beside its mark; `told`: the number of this rank's last mark."""

    def __init__(self, slots: Slots, size: int) -> None:
        self._slots, self._size = slots, size
        self.room, self.told = slots.size - _HEAD.size, 0

    def meet(self, number: int, step: int, kind: str, what: str, size: int, sizes_differ: bool = False) -> list[int]:
        """Send this mark, and what `put` has put into the slot, and wait for those of all ranks.

        Args:
            number: of this request; all ranks count theirs.
            size: bytes of what is asked for.
            sizes_differ: each rank may have another one.

        Returns: the sizes of all ranks.

        Raises:
            Differing: another rank asks for something else.
            PartFailed: another one has failed (see `fail`).
            RuntimeError: a rank is gone.
        """
        marks = self._exchanged(number, step, kind, what, size)
        if marks is None:
            return [size] * self._size
        for rank, mark in enumerate(marks):
            if (mark.kind, mark.number) == (_FAILED, number):
                raise PartFailed(self.taken(rank, mark.size).decode(errors="replace"))
        asked = [(each.number, each.kind, each.what, 0 if sizes_differ else each.size) for each in marks]
        for rank, each in enumerate(asked):
            if each != asked[0]:
                first, other = marks[0].words(marks[rank]), marks[rank].words(marks[0])
                in_step = {each.number for each in marks} == {number}
                raise Differing(f"rank 0 asks for {first}, and rank {rank} for {other}", in_step)
        return [each.size for each in marks]

    def fail(self, number: int, step: int, reason: str, how: str = "") -> bool:
        """Tell the others, who wait for something in the same call, that this rank's part of it failed.

        Returns: whether those of all ranks did, and in the same way: all ranks come to the same.
        """
        data = reason.encode()[: self.room]
        self.put(data)
        marks = self._exchanged(number, step, _FAILED, how, len(data))
        return marks is None or all((each.kind, each.what) == (_FAILED, marks[0].what) for each in marks)

    def _exchanged(self, number: int, step: int, kind: str, what: str, size: int) -> list[_Mark] | None:
        """The marks of all ranks; None where they are the same."""
        own = _HEAD.pack(number, step, size, kind.encode()[:16], what.encode()[:88])
        self._slots.own[: _HEAD.size] = own
        self.told = number
        self._slots.exchange()
        heads = [bytes(self._slots.of(rank)[: _HEAD.size]) for rank in range(self._size)]
        return None if all(each == own for each in heads) else [_Mark.read(each) for each in heads]

    def put(self, data: bytes | torch.Tensor) -> None:
        """Of at most `room` bytes; a tensor of uint8 on the CPU."""
        place = self._slots.own[_HEAD.size : _HEAD.size + len(data)]
        if not isinstance(data, torch.Tensor):
            place[:] = data
        elif len(data):
            torch.frombuffer(place, dtype=torch.uint8).copy_(data)

    def taken(self, rank: int, size: int) -> bytes:
        return bytes(self._slots.of(rank)[_HEAD.size : _HEAD.size + size])

    def gathered(self, own: torch.Tensor, ranks: Sequence[int], meet: Callable[[], Any]) -> torch.Tensor:
        """The bytes of these ranks, one after the other.

        Args:
            own: uint8 on the CPU, as long on all ranks.
            meet: has all ranks meet, for each piece: what another one has put into its slot is what was asked for.
        """
        whole = own.new_empty((len(ranks), len(own)))
        for first, parts in self._pieces(own, ranks, meet):
            for row, part in zip(whole, parts, strict=True):
                row[first : first + len(part)] = part
        return whole.view(-1)

    def summed(self, own: torch.Tensor, ranks: Sequence[int], meet: Callable[[], Any]) -> torch.Tensor:
        """The sum of these ranks' tensors, which are flat, of one piece and on the CPU; else as `gathered`."""
        # Before they meet, after which the others go on: memory may be short.
        total = torch.empty_like(own)
        most = min(len(own), self.room // own.itemsize)
        room = own.new_empty(len(ranks) * most)
        for first, parts in self._pieces(own.view(torch.uint8), ranks, meet):
            elements, place = len(parts[0]) // own.itemsize, first // own.itemsize
            summands = room[: len(ranks) * elements].view(len(ranks), elements)
            torch.stack([each.view(own.dtype) for each in parts], out=summands)
            torch.sum(summands, 0, dtype=own.dtype, out=total[place : place + elements])
        return total

    def _pieces(
        self, own: torch.Tensor, ranks: Sequence[int], meet: Callable[[], Any]
    ) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """Where each piece begins, which is as much as a slot holds, and those of these ranks; read before the next."""
        for first in range(0, max(1, len(own)), self.room):
            piece = own[first : first + self.room]
            self.put(piece)
            meet()
            yield first, self._seen(ranks, len(piece))

    def _seen(self, ranks: Sequence[int], size: int) -> list[torch.Tensor]:
        """Of each of these ranks so many bytes, as they lie there until the next exchange: to be copied."""
        if not size:
            return [torch.empty(0, dtype=torch.uint8, device="cpu") for _ in ranks]
        return [
            torch.frombuffer(self._slots.of(rank), dtype=torch.uint8, count=size, offset=_HEAD.size) for rank in ranks
        ]
