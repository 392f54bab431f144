"""`Links` of the ranks of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.ranks.group import Group
from overdrive.ranks.mesh import Mesh

_TAGS = 1 << 29  # of gloo's 31 bits; what is under way at a time is far less
_WHAT = "what another stage makes"


class Live:
    def __init__(self, mesh: Mesh) -> None:
        self._group: Group = mesh.row
        self.rank, self.size = mesh.row.rank, mesh.row.size
        self.replicas = mesh.column
        self._count = 0
        self._under_way: list[tuple[Any, torch.Tensor]] = []
        self._group.connect_stages()

    def number(self) -> int:
        self._count += 1
        return self._count

    def send(self, tensor: torch.Tensor, to: int, number: int, back: bool = False) -> None:
        if tensor.numel():
            self._under_way.append((self._group.begin_send(tensor, to, _tag(number, back)), tensor))

    def receive(self, room: torch.Tensor, source: int, number: int, back: bool = False) -> None:
        if room.numel():
            self._group.wait_for(self._group.begin_receive(room, source, _tag(number, back)), _WHAT)

    def later(self, room: torch.Tensor, source: int, number: int) -> Callable[[], None]:
        if not room.numel():
            return lambda: None
        work = self._group.begin_receive(room, source, _tag(number, False))
        return lambda: self._group.wait_for(work, "a model's result")

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._group.sum_(tensor, "the gradient of what a model is given")

    def over(self) -> None:
        """All that was sent has been taken, or is about to be: let go of it."""
        for work, _ in self._under_way:
            self._group.wait_for(work, "who takes what a stage makes")
        self._under_way.clear()


def _tag(number: int, back: bool) -> int:
    return 2 * (number % _TAGS) + back
