"""Starts a trial as several groups of processes, the ranks of one program, each by a launcher of one rank."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from overdrive.machine.pool.start import free_port
from overdrive.ranks.membership import environment_of, threads_of
from overdrive.trials.launchers.launcher import Launcher, ProcessGroup


class RanksLauncher:
    """
    Args:
        ranks: how many; each has its share of the cores, unless the environment says how many threads.
        each: what starts one rank, on this machine, where the ranks meet.
        started: those that are started at all; they imagine the others.
    """

    def __init__(self, ranks: int, each: Launcher, started: Sequence[int] = ()) -> None:
        self._ranks = ranks
        self._each = each
        self._started = started or range(ranks)

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> RanksGroup:
        port, seed = free_port(), secrets.token_hex(16)
        started: list[ProcessGroup] = []
        try:
            for rank in self._started:
                threads = {"OMP_NUM_THREADS": str(threads_of(len(self._started))), **environment}
                own = environment_of(self._ranks, rank, port, seed)
                started.append(self._each.start({**threads, **own}, output))
        except OSError:
            RanksGroup(started).stop(0.0)
            raise
        return RanksGroup(started)


class RanksGroup:
    """Rank 0 speaks for the program. All stand still together, and all are ended where one is."""

    def __init__(self, ranks: Sequence[ProcessGroup]) -> None:
        self._ranks = ranks

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def pids(self) -> Sequence[int]:
        return [pid for each in self._ranks for pid in each.pids]

    @property
    def reports(self) -> Sequence[int]:
        return [each for rank in self._ranks for each in rank.reports]

    def send(self, line: bytes) -> None:
        for each in self._ranks:
            each.send(line)

    def read(self, seconds: float) -> list[tuple[int, bytes]]:
        select.select(self.reports, [], [], seconds)
        return [(rank, line) for rank, each in enumerate(self._ranks) for _, line in each.read(0.0)]

    def pause(self) -> None:
        for each in self._ranks:
            each.pause()

    def resume(self) -> None:
        for each in self._ranks:
            each.resume()

    def exit_code(self) -> int | None:
        codes = [each.exit_code() for each in self._ranks]
        return next(filter(None, codes), None if None in codes else 0)

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        return all(each.wait(max(0.0, until - time.monotonic())) for each in self._ranks)

    def stop(self, grace: float) -> None:
        with ThreadPoolExecutor(max(1, self.size)) as at_once:  # one after the other, each may take the whole grace
            list(at_once.map(lambda each: each.stop(grace), self._ranks))
