"""Requests between ranks, each with a mark: what is asked for, and the how manieth it is.

Two ranks that ask for different things do not meet in one sum or gather: gloo ends both processes then, from within
C++, without a word. So each request begins with the exchange of a slot of fixed size. It holds the mark and, where
there is room, what is asked for: small requests take one message as before, large ones a second.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.seams.torch.internals import gather

_SLOT = 2048  # bytes: statistics of 64 channels and results of a small model fit; 64 bytes take as long to exchange
_HEAD = struct.Struct("<qqq16s96s")
ROOM = _SLOT - _HEAD.size


class Differing(Exception):
    """Ranks ask for different things; the message names two of them, the step of each, and what it asks for."""


@dataclass(frozen=True)
class _Mark:
    number: int
    step: int
    size: int
    kind: str
    what: str

    @classmethod
    def read(cls, data: bytes | bytearray, place: int) -> _Mark:
        number, step, size, kind, what = _HEAD.unpack_from(data, place)
        return cls(number, step, size, *(each.rstrip(b"\0").decode(errors="replace") for each in (kind, what)))

    def words(self, beside: _Mark) -> str:
        """`beside`: the mark that it is not the same as."""
        same = (self.what, self.step) == (beside.what, beside.step)
        more = f" (request {self.number}: {self.kind}, {self.size} bytes)" if same else ""
        return f"{self.what} in step {self.step + 1}{more}"


class Requests:
    """Args: `group`: a process group for these slots alone."""

    def __init__(self, group: Any, size: int) -> None:
        self._group, self._size = group, size
        self._own, self._all = bytearray(_SLOT), bytearray(size * _SLOT)
        self._sent = torch.frombuffer(self._own, dtype=torch.uint8)
        self._received = torch.frombuffer(self._all, dtype=torch.uint8)

    def meet(self, number: int, step: int, kind: str, what: str, size: int, sizes_differ: bool = False) -> list[int]:
        """Send this mark, and what `put` has put into the slot, and wait for those of all ranks.

        Args:
            number: of this request; all ranks count theirs.
            size: bytes of what is asked for.
            sizes_differ: each rank may have another one.

        Returns: the sizes of all ranks.

        Raises:
            Differing: another rank asks for something else.
            RuntimeError: a rank is gone.
        """
        _HEAD.pack_into(self._own, 0, number, step, size, kind.encode()[:16], what.encode()[:96])
        gather(self._group, self._received, self._sent).wait()
        marks = [_Mark.read(self._all, rank * _SLOT) for rank in range(self._size)]
        asked = [(each.number, each.kind, each.what, 0 if sizes_differ else each.size) for each in marks]
        for rank, each in enumerate(asked):
            if each != asked[0]:
                first, other = marks[0].words(marks[rank]), marks[rank].words(marks[0])
                raise Differing(f"rank 0 asks for {first}, and rank {rank} for {other}")
        return [each.size for each in marks]

    def put(self, data: bytes | torch.Tensor) -> None:
        """Of at most `ROOM` bytes; a tensor of uint8 on the CPU."""
        if isinstance(data, torch.Tensor):
            self._sent[_HEAD.size : _HEAD.size + len(data)] = data
        else:
            self._own[_HEAD.size : _HEAD.size + len(data)] = data

    def taken(self, rank: int, size: int) -> bytes:
        first = rank * _SLOT + _HEAD.size
        return bytes(self._all[first : first + size])

    def all_taken(self, size: int) -> Sequence[torch.Tensor]:
        """Of each rank so many bytes; they are copies."""
        slots = self._received.view(self._size, _SLOT)[:, _HEAD.size : _HEAD.size + size]
        return slots.clone().unbind()
