"""All ranks in one process, for a trial: each is a thread, and only one of them runs at a time.

Each draws random numbers from where the whole call began, and they wait for each other where ranks would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from overdrive.core.rng import States


class Turns:
    """Attributes: `failed`: what ranks raised, the first one first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._mine = threading.local()
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._over = [False] * size
        self.failed: list[BaseException] = []

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return int(self._mine.rank)

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
                self.failed.append(error)
            self._over[rank] = True
            self._pass_on(rank)

        threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(self.size)]
        for each in threads:
            each.start()
        self._turns[0].release()
        for each in threads:
            each.join()
        if self.failed:
            raise self.failed[0]
        return made

    def wait(self) -> None:
        """Let the others run until they wait, too."""
        chance = States.now()
        self._pass_on(self.rank)
        self._turns[self.rank].acquire()
        chance.restore()

    def _pass_on(self, rank: int) -> None:
        for step in range(1, self.size + 1):
            other = (rank + step) % self.size
            if not self._over[other]:
                self._turns[other].release()
                return
