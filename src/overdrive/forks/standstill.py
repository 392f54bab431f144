"""Tells a forked process that will never go on from one that is slow.

A fork has only the thread that forked, and all locks as they were: one that another thread held (of a library, of the
program's own, of an import) is never given back there. Who waits for it sleeps and is not woken, while one that works,
reads, or waits its turn is woken again and again.
"""

from __future__ import annotations

import os
import time

LOOKS = 10  # in a row, at which it had not been woken, before it is given up
INTERVAL = 1.0  # seconds from one look to the next
# In one process, after which no forked process is waited for any more: who holds a lock now may hold it each time.
MOST = 3

_found = 0


def expected() -> bool:
    """Whether forks of this process have stood still too often to wait for another."""
    return _found >= MOST


class Standstill:
    """Watches one process."""

    def __init__(self, pid: int) -> None:
        self._tasks = f"/proc/{pid}/task"
        self._looked = time.monotonic()
        self._woken = -1
        self._still = 0

    def found(self) -> bool:
        """Whether it stands still for good. Looks once in an `INTERVAL`: 20 us for each of its threads."""
        now = time.monotonic()
        if now - self._looked < INTERVAL:
            return False
        self._looked = now
        woken = self._times_woken()
        self._still = self._still + 1 if woken is not None and woken == self._woken else 0
        self._woken = -1 if woken is None else woken
        if self._still < LOOKS:
            return False
        global _found
        _found += 1
        return True

    def _times_woken(self) -> int | None:
        """How often its threads were; None where one is not asleep, or where that cannot be known."""
        total = 0
        try:
            for task in os.listdir(self._tasks):
                with open(f"{self._tasks}/{task}/status") as file:
                    told = dict(line.split(":", 1) for line in file if ":" in line)
                if told["State"].split()[0] != "S":  # D: a disk; R: it works, or waits for a core; T: it was stopped
                    return None
                total += int(told["voluntary_ctxt_switches"]) + int(told["nonvoluntary_ctxt_switches"])
        except (OSError, KeyError, ValueError):
            return None
        return total
