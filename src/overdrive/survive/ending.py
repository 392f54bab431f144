"""Signals that announce the end: SIGTERM, and those that Slurm sends ahead of a time limit.

In the handler nothing is done but noted: the snapshot is taken after the next step, where nothing is half made.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Ending:
    """
    Attributes:
        asked_by: the signal that came; 0 while none has.
    """

    def __init__(self, code: int | None) -> None:
        """`code`: what the scheduler takes for "run it again"; 128 and the signal's number where it is not given."""
        self.asked_by = 0
        self._code = code

    def listen(self) -> None:
        """A program that sets handlers of its own has those."""
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:  # else it was told to be ignored
                signal.signal(number, self._asked)

    def pass_over(self) -> None:
        """Another process of the run answers them, and ends this one."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # no SIG_IGN, which programs that it starts would inherit

    def _asked(self, number: int, frame: Any) -> None:
        self.asked_by = number

    def end(self) -> NoReturn:
        """The process ends here: what the program does at its end belongs to its end."""
        sys.stdout.flush()
        sys.stderr.flush()
        end_children()
        os._exit(128 + self.asked_by if self._code is None else self._code)


def end_children() -> None:
    """Loaders' workers, which would wait for this process."""
    for child in multiprocessing.active_children():
        child.kill()
