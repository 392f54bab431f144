"""Whether the cores slow each other down more than they usually do: then a neighbour is there that nothing tells of.

A guest's cores are threads of its host. Where the host has two of them share one core for a while, each runs at little
more than half its speed, and the guest sees no steal, no waiting and no other program. On a machine of ours with two
cores that comes for 2 to 40 s at a time; a step of the MNIST RNN on two threads takes 2.9 ms then, not 2.05, on one
thread 2.65 in both cases. So it changes which plan is the best, and not only the noise.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from collections import deque

from overdrive.machine.numa import allowed_cores

_MOST_CORES = 16  # on more, the host moves some all the time, and it is a small part
# 0.27 ms of arithmetic in registers, of which two threads of a core do 1.1 times as much as one.
_PIECE, _PIECES = bytes(8192), 48
_TRIES = 2  # of which the shorter counts
_LATEST = 0.1  # seconds for which a look holds; one takes some 1.5 ms
_PATIENCE = 5.0  # seconds
_KEPT = 2000  # looks of which the usual one is told


class Crowding:
    """Of the cores that this process may use.

    A thread on each does the same work, alone and with all others, and counts the time that it was given itself: what
    other programs of this machine take from it is not in it. Threads are started by the first look.
    """

    def __init__(self) -> None:
        self._cores = sorted(allowed_cores())
        self._threads: list[_Core] = []
        self._together = threading.Barrier(max(1, len(self._cores)))
        self._turn, self._looked, self._last = 0, 0.0, 1.0
        self._kept: deque[float] = deque(maxlen=_KEPT)

    def look(self) -> float | None:
        """Times as long as usual the same work takes a core while all others work, too, and not alone; None where that
        is not told: on one core, on many, and where threads cannot be bound."""
        if not 1 < len(self._cores) <= _MOST_CORES:
            return None
        if time.monotonic() - self._looked < _LATEST:
            return self._last
        try:
            self._threads = self._threads or [_Core(core, self._together) for core in self._cores]
            now = self._slowed()
        except BaseException as error:  # a core was taken away, there are no more threads, or Ctrl-C
            self.close()
            if isinstance(error, (OSError, RuntimeError)):
                return None
            raise
        self._kept.append(now)
        self._looked, self._last = time.monotonic(), now / statistics.median(self._kept)
        return self._last

    def close(self) -> None:
        """It looks no more."""
        self._together.abort()
        for each in self._threads:
            each.ask("end")
        self._threads, self._cores = [], []

    def _slowed(self) -> float:
        one = self._threads[self._turn % len(self._threads)]
        self._turn += 1
        alone = min(one.told("alone") for _ in range(_TRIES))
        together = []
        for _ in range(_TRIES):
            for each in self._threads:
                each.ask("together")
            together.append([each.answer() for each in self._threads][self._threads.index(one)])
        return min(together) / max(alone, 1e-9)


class _Core:
    """A thread that is bound to one."""

    def __init__(self, core: int, together: threading.Barrier) -> None:
        self._core, self._together = core, together
        self._asked, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._way, self._found = "", 0.0
        self._failed = False
        threading.Thread(target=self._run, name=f"overdrive: core {core}", daemon=True).start()

    def ask(self, way: str) -> None:
        self._way = way
        self._asked.release()

    def answer(self) -> float:
        """
        Raises:
            OSError: the thread cannot be bound, or its core is busy with what goes before.
        """
        if not self._done.acquire(timeout=_PATIENCE) or self._failed:
            raise OSError("this core is not to be used")
        return self._found

    def told(self, way: str) -> float:
        self.ask(way)
        return self.answer()

    def _run(self) -> None:
        try:
            os.sched_setaffinity(0, {self._core})  # of this thread
        except OSError:
            self._failed = True
        while True:
            self._asked.acquire()
            if self._way == "end":
                return
            if self._way == "together":
                try:
                    self._together.wait()
                except threading.BrokenBarrierError:
                    return
            began = time.thread_time()
            for _ in range(_PIECES):
                hashlib.blake2b(_PIECE)  # gives the interpreter to others meanwhile
            self._found = time.thread_time() - began
            self._done.release()
