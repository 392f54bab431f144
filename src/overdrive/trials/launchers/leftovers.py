"""What a trial's first process leaves running when it ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

_TIDYING = 2.0  # seconds for what removes shared memory: it takes some milliseconds


def known(pids: Sequence[int]) -> list[psutil.Process]:
    """These processes, as far as they live: not others that have their numbers later on."""
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def elsewhere(leaders: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Of what these have started, the processes that have left their group: a signal to that does not reach them."""
    found = []
    for leader in leaders:
        with suppress(psutil.Error):
            for each in leader.children(recursive=True):
                with suppress(ProcessLookupError):
                    if os.getpgid(each.pid) != leader.pid:
                        found.append(each)
    return found


def end(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.Error):
            each.kill()


def end_group(leader: int) -> None:
    """Kill all of this process group.

    What Python has beside a program that shares memory by name removes what the others have left, as soon as they are
    gone. Killed with them it did not, and each trial left a data set in /dev/shm.
    """
    members = _members(leader)
    tidying = [pid for pid in members if _tidies(pid)]
    if tidying:
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                if pid not in tidying:
                    os.kill(pid, signal.SIGKILL)
        limit = time.monotonic() + _TIDYING
        while any(map(_tidies, tidying)) and time.monotonic() < limit:
            time.sleep(0.002)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _members(group: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def _tidies(pid: int) -> bool:
    """Whether it is such a process of Python's, or of joblib's, and lives."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return b"resource_tracker" in words.read()
    except OSError:
        return False
