"""All ranks in one process: each is a thread, and only one of them runs at a time.

Each draws random numbers from where the whole call began, and they wait for each other where ranks would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import torch

from overdrive.core.rng import States
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.roles import Roles


class InTurns:
    """`Shards` of all ranks, for one call of a model. Weights are whole here: a rank takes its part."""

    def __init__(self, size: int, roles: Roles) -> None:
        self._size, self._roles = size, roles
        self._mine = threading.local()
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._given: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self._failed: list[BaseException] = []
        self._over = [False] * size

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return int(self._mine.rank)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchanged(tensor)).sum(0)

    def gather(self, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        return cut.joined(torch.cat(self._exchanged(tensor), cut.dim), self.size)

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        return cut.part(self._roles.whole(parameter), self.rank, self.size)

    def open_cut(self, name: str, cut: Cut, makers: Collection[str]) -> Cut | None:
        return self._roles.open_cut(name, cut, makers)

    def gathered(self, makers: Collection[str], why: str, segments: tuple[int, ...]) -> None:
        if not self._failed:  # else this comes of that
            self._roles.gathered(makers, why, segments)

    def run(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` makes as each rank.

        Raises:
            Exception: what it raised as the first that failed.
        """
        made: list[Any] = [None] * self.size
        began = States.now()

        def live(rank: int) -> None:
            self._mine.rank = rank
            self._turns[rank].acquire()
            try:
                began.restore()
                made[rank] = work()
            except BaseException as error:
                self._failed.append(error)
            self._over[rank] = True
            self._pass_on(rank)

        threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(self.size)]
        for each in threads:
            each.start()
        self._turns[0].release()
        for each in threads:
            each.join()
        if self._failed:
            raise self._failed[0]
        return made

    def _exchanged(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """What all ranks give here."""
        rank = self.rank
        place = len(self._given[rank])
        self._given[rank].append(tensor)
        chance = States.now()
        self._pass_on(rank)
        self._turns[rank].acquire()
        chance.restore()
        if self._failed or any(len(each) <= place for each in self._given):
            raise RuntimeError("its ranks do not meet")
        return [each[place] for each in self._given]

    def _pass_on(self, rank: int) -> None:
        for step in range(1, self.size + 1):
            other = (rank + step) % self.size
            if not self._over[other]:
                self._turns[other].release()
                return
