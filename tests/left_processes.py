"""Processes of Overdrive that a session of tests has started, and that live on when it is over.

Each is known by a variable that all inherit which the session starts, also those that are nobody's children by then. A
test that gives a program an environment of its own, or one of Ray's, is seen by that test alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time

import psutil

STARTED_BY = "TESTS_STARTED_BY"
_PATIENCE = 30.0  # seconds for those that are about to end: what a killed tune had started, say


def begin() -> str:
    """From here on what this process starts is known as its own."""
    os.environ[STARTED_BY] = mark = f"{os.getpid()}-{secrets.token_hex(4)}"
    return mark


def left(mark: str, patience: float = _PATIENCE) -> list[str]:
    """Their lines, once those that are about to end have had their time; they are ended."""
    until = time.monotonic() + patience
    while (found := _alive(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return list(found.values())


def _alive(mark: str) -> dict[psutil.Process, str]:
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            line = " ".join(process.cmdline())
            ours = "overdrive" in line or "tests.warm_trials" in line
            if ours and process.environ().get(STARTED_BY) == mark and not _is_kept(process, line):
                found[process] = f"{process.pid}: {line}"
    return found


def _is_kept(process: psutil.Process, line: str) -> bool:
    """The two that trials of tests are forked from end with the session's own process, and it is none of them."""
    nursery = "tests.warm_trials trials" in line or "tests.warm_trials programs" in line
    return process.pid == os.getpid() or (nursery and process.ppid() == os.getpid())
