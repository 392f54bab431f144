"""`Links` of all ranks in one process, for a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.model_state.turns import Turns

_IDLE = 4  # turns of all ranks in which nothing is sent


class Mailboxes(Turns):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._numbers = [0] * size
        self._sent: dict[tuple[Any, ...], torch.Tensor] = {}
        self._summed: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self._idle = 0

    def number(self) -> int:
        self._numbers[self.rank] += 1
        return self._numbers[self.rank]

    def send(self, tensor: torch.Tensor, to: int, number: int, back: bool = False) -> None:
        self._sent[self.rank, to, number, back] = tensor.clone()
        self._idle = 0

    def receive(self, room: torch.Tensor, source: int, number: int, back: bool = False) -> None:
        key = source, self.rank, number, back
        self._until(lambda: key in self._sent)
        given = self._sent.pop(key)
        if given.shape != room.shape or given.dtype != room.dtype:
            raise RuntimeError(f"what a stage sends is {_told(given)}, and what is waited for {_told(room)}")
        room.copy_(given)

    def later(self, room: torch.Tensor, source: int, number: int) -> Callable[[], None]:
        return lambda: self.receive(room, source, number)

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        place = len(self._summed[self.rank])
        self._summed[self.rank].append(tensor.clone())
        self._idle = 0
        self._until(lambda: all(len(each) > place for each in self._summed))
        return tensor.copy_(torch.stack([each[place] for each in self._summed]).sum(0))

    def _until(self, there: Callable[[], bool]) -> None:
        while not there():
            self._idle += 1
            if self.failed or self._idle > _IDLE * self.size:
                raise RuntimeError("its ranks do not meet")
            self.wait()


def _told(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
