"""Signals to the process that starts ranks: which its agent answers, and how Ctrl-Z comes to the ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_USUAL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def heard() -> str:
    """But for those that this process was told to ignore, as by `nohup`: the agent would take them for its end."""
    return ",".join(each.name for each in _USUAL if signal.getsignal(each) != signal.SIG_IGN)


@contextmanager
def stopped_together() -> Iterator[None]:
    """A terminal's Ctrl-Z comes to this process alone: ranks are in sessions of their own."""
    if signal.getsignal(signal.SIGTSTP) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTSTP, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _stop(number: int, frame: Any) -> None:
    import psutil

    groups = [each.pid for each in psutil.Process().children()]
    _tell(groups, signal.SIGSTOP)
    signal.raise_signal(signal.SIGSTOP)  # and here it goes on, by SIGCONT
    _tell(groups, signal.SIGCONT)


def _tell(groups: list[int], number: int) -> None:
    for group in groups:
        with suppress(ProcessLookupError):  # it is no group's first process
            os.killpg(group, number)
