"""Processes that were forked here, and are waited for and killed without troubling the program."""

from __future__ import annotations

import contextlib
import os
import signal
import time

# Those that were killed and not gone in time: beside a busy program they are slow even in that.
_dying: set[int] = set()


class ForkedProcess:
    """
    Attributes:
        pid: 0 once it is gone, or was left to `bury`.
        seconds: of processor time that it has taken; 0 until it is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seconds = 0.0

    def is_gone(self) -> bool:
        if not self.pid:
            return True
        try:
            process, _, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # the program has waited for it
            self.pid = 0
            return True
        if process:
            self.pid, self.seconds = 0, usage.ru_utime + usage.ru_stime
        return bool(process)

    def kill(self, patience: float) -> None:
        """Kill it, and wait so many seconds for its end; one that takes longer is buried later."""
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        limit = time.monotonic() + patience
        while not self.is_gone() and time.monotonic() < limit:
            time.sleep(0.001)  # a process that reads from a dead file server cannot even be killed
        if self.pid:
            _dying.add(self.pid)
            self.pid = 0


def bury() -> None:
    """Those that are gone by now, which the program must not find when it waits for its own."""
    for pid in tuple(_dying):
        try:
            gone = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:  # another process's, or waited for already
            gone = True
        if gone:
            _dying.discard(pid)
