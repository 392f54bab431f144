"""Processes that were forked here, and are waited for and killed without troubling the program."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from overdrive.core.silence import silenced

_ours: set[int] = set()  # all that are not gone yet
# Of these, those that were killed and not gone in time: beside a busy program they are slow even in that.
_dying: set[int] = set()
_TOKENIZERS = "TOKENIZERS_PARALLELISM"


def fork() -> int:
    """As `os.fork`, of which the program's user reads nothing.

    Python 3.12 warns of forks with threads. Hugging Face's tokenizers, up to 0.22, write four lines in each forked
    process, where this variable is unset; `putenv` leaves the program's `os.environ` as it is.
    """
    told = "tokenizers" in sys.modules and _TOKENIZERS not in os.environ
    if told:
        os.putenv(_TOKENIZERS, "false")
    pid = -1
    try:
        with silenced():
            pid = os.fork()
    finally:
        if told and pid:  # in the forked process it stays: that may fork another
            os.unsetenv(_TOKENIZERS)
    return pid


class ForkedProcess:
    """
    Attributes:
        pid: 0 once it is gone, or was left to `bury`.
        seconds: of processor time that it has taken; 0 until it is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seconds = 0.0
        if pid:
            _ours.add(pid)

    def is_gone(self) -> bool:
        if not self.pid:
            return True
        try:
            process, _, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:  # the program has waited for it
            process = self.pid
        else:
            if process:
                self.seconds = usage.ru_utime + usage.ru_stime
        if process:
            _ours.discard(process)
            self.pid = 0
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
            forget(pid)


def is_ours(pid: int) -> bool:
    """Whether it was forked here, and nobody has heard of its end."""
    return pid in _ours


def forget(pid: int) -> None:
    """It is gone."""
    _ours.discard(pid)
    _dying.discard(pid)


def _forget_all() -> None:
    _ours.clear()
    _dying.clear()


os.register_at_fork(after_in_child=_forget_all)  # they are the parent's
