"""`Links` of all ranks in one process, for a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.model_state.turns import Turns

_IDLE = 4  # turns of all ranks in which nothing is sent


class Mailboxes:
    """Args: `size`: how many stages there are in each of the `replicas`."""

    def __init__(self, size: int, replicas: int = 1) -> None:
        self.size, self.turns = size, Turns(size * replicas)
        self.replicas = _Replicas(self, replicas)
        self._numbers = [0] * self.turns.size
        self._sent: dict[tuple[Any, ...], torch.Tensor] = {}
        self._told: dict[tuple[str, int], list[torch.Tensor]] = {}
        self._idle = 0

    @property
    def rank(self) -> int:
        return self.turns.rank % self.size

    def run(self, work: Callable[[], Any]) -> list[Any]:
        return self.turns.run(work)

    def number(self) -> int:
        self._numbers[self.turns.rank] += 1
        return self._numbers[self.turns.rank]

    def send(self, tensor: torch.Tensor, to: int, number: int, back: bool = False) -> None:
        self._sent[self.turns.rank, to, number, back] = tensor.clone()
        self._idle = 0

    def receive(self, room: torch.Tensor, source: int, number: int, back: bool = False) -> None:
        key = self.turns.rank - self.rank + source, self.rank, number, back
        self._until(lambda: key in self._sent)
        given = self._sent.pop(key)
        if given.shape != room.shape or given.dtype != room.dtype:
            raise RuntimeError(f"what a stage sends is {_told(given)}, and what is waited for {_told(room)}")
        room.copy_(given)

    def later(self, room: torch.Tensor, source: int, number: int) -> Callable[[], None]:
        return lambda: self.receive(room, source, number)

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        row = self.turns.rank - self.rank
        return tensor.copy_(torch.stack(self.exchanged("row", tensor, range(row, row + self.size))).sum(0))

    def exchanged(self, among: str, tensor: torch.Tensor, ranks: Sequence[int]) -> list[torch.Tensor]:
        """What all of these ranks give here."""
        own = self._told.setdefault((among, self.turns.rank), [])
        place = len(own)
        own.append(tensor.clone())
        self._idle = 0
        self._until(lambda: all(len(self._told.get((among, each), ())) > place for each in ranks))
        return [self._told[among, each][place] for each in ranks]

    def _until(self, there: Callable[[], bool]) -> None:
        while not there():
            self._idle += 1
            if self.turns.failed or self._idle > _IDLE * self.turns.size:
                raise RuntimeError("its ranks do not meet")
            self.turns.wait()


class _Replicas:
    """What a `Group` of the ranks of one stage does for a call."""

    def __init__(self, boxes: Mailboxes, size: int) -> None:
        self._boxes, self.size = boxes, size

    @property
    def rank(self) -> int:
        return self._boxes.turns.rank // self._boxes.size

    def gather(self, tensor: torch.Tensor, dim: int, sizes: Sequence[int], what: str) -> torch.Tensor:
        parts = self._exchanged(tensor)
        if [each.shape[dim] for each in parts] != list(sizes):
            raise RuntimeError("its replicas make other shapes")
        return torch.cat(parts, dim)

    def sum_(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        return tensor.copy_(torch.stack(self._exchanged(tensor)).sum(0))

    def _exchanged(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        boxes = self._boxes
        return boxes.exchanged("column", tensor, range(boxes.rank, boxes.turns.size, boxes.size))


def _told(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
