"""How long processes waited for a core, and how much others used meanwhile. Linux only; None where it is not told.

A container often has no cgroup of its own to be read, and some kernels keep no scheduler statistics: nothing here fails
for that.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from overdrive.machine import cgroup, reading

_NANOSECONDS = 1e9
# /proc/stat's columns: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
_BUSY_COLUMNS = (0, 1, 2, 5, 6)
_STEAL_COLUMN = 7
_TICKS = os.sysconf("SC_CLK_TCK")  # a second, 100 nearly everywhere


@dataclass(frozen=True)
class Load:
    """Over one stretch of time, as shares of it: 0.5 is half of one core."""

    waited: float | None = None  # by all threads together, runnable or throttled, and what the host took for itself
    others: float | None = None  # used by processes that are not watched, at the least


@dataclass(frozen=True)
class Reading:
    """Seconds since some time; None: not told here."""

    moment: float
    ran: float | None  # by all threads watched
    waited: float | None
    throttled: float
    stolen: float
    busy: float | None  # by all processes of the machine


class LoadWatch:
    """Of some processes with all their threads and children.

    Reading takes about 15 us a thread, while they stand still.
    """

    def __init__(self, pids: Sequence[int], root: Path = reading.ROOT) -> None:
        self._pids = tuple(pids)
        self._root = root
        self._proc = str(root / "proc")

    def read(self) -> Reading:
        ran, waited = self._threads()
        busy, stolen = self._machine()
        return Reading(time.monotonic(), ran, waited, cgroup.throttled(self._root) or 0.0, stolen, busy)

    def since(self, before: Reading) -> Load:
        """What came of the time since then. A thread that is over takes its times with it: nothing falls below 0."""
        after = self.read()
        wall = after.moment - before.moment
        ran, waited = _less(after.ran, before.ran), _less(after.waited, before.waited)
        busy = _less(after.busy, before.busy)
        if wall <= 0 or waited is None or ran is None:
            return Load()
        # A throttled thread counts as waiting where the kernel says so; a stolen one counts as running.
        lost = max(waited, after.throttled - before.throttled) + after.stolen - before.stolen
        if busy is None:
            return Load(lost / wall)
        # Of each core that is busy a tick more or less is counted than there was: 16 of them err by 0.4 of one in a
        # block of 0.1 s. What may be no more than that is nobody's.
        doubt = math.sqrt(busy / wall) / _TICKS
        return Load(lost / wall, max(0.0, busy - ran - doubt) / wall)

    def _threads(self) -> tuple[float | None, float | None]:
        """Seconds that all threads ran and waited."""
        ran = waited = 0
        told = False
        for pid in self._processes():
            folder = f"{self._proc}/{pid}/task"
            with suppress(OSError):  # it is over
                for thread in os.listdir(folder):
                    words = reading.text(f"{folder}/{thread}/schedstat").split()
                    if len(words) >= 2:
                        told = True
                        ran, waited = ran + int(words[0]), waited + int(words[1])
        return (ran / _NANOSECONDS, waited / _NANOSECONDS) if told else (None, None)

    def _processes(self) -> Iterator[int | str]:
        todo: list[int | str] = [*self._pids]
        while todo:
            pid = todo.pop()
            yield pid
            todo += reading.text(f"{self._proc}/{pid}/task/{pid}/children").split()

    def _machine(self) -> tuple[float | None, float]:
        """Seconds that all cores were busy, and that the host took from them; in ticks of 10 ms."""
        words = reading.text(f"{self._proc}/stat", 256).splitlines()[:1]
        words = words[0].split() if words else []
        if len(words) <= _STEAL_COLUMN + 1 or words[0] != "cpu":
            return None, 0.0
        ticks = [int(word) for word in words[1 : _STEAL_COLUMN + 2]]
        return sum(ticks[column] for column in _BUSY_COLUMNS) / _TICKS, ticks[_STEAL_COLUMN] / _TICKS


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else max(0.0, after - before)
