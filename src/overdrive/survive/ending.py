"""Signals that announce the end: SIGTERM, and those that Slurm sends ahead of a time limit.

In the handler it is only noted where there is something to keep: the snapshot is taken after the next step, where
nothing is half made.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from overdrive.core.streams import flush

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
IN_VAIN = "not to be queued again, as this time has brought no new snapshot, and the next would bring none either"


class Ending:
    """
    Attributes:
        asked_by: the signal that came; 0 while none has.
        at_once: told when one comes; ends the process where no step is to be waited for.
    """

    def __init__(self, code: int | None) -> None:
        """`code`: what the scheduler takes for "run it again"; 128 and the signal's number where it is not given."""
        self.asked_by = 0
        self.at_once: Callable[[], object] = lambda: None
        self._code = code

    def listen(self) -> None:
        """A program that sets handlers of its own has those."""
        for number in SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:  # else it was told to be ignored
                signal.signal(number, self._asked)
        os.register_at_fork(after_in_child=self._leave_child)

    def pass_over(self) -> None:
        """Another process of the run answers them, and ends this one."""
        for number in SIGNALS:
            signal.signal(number, self._passed)  # no SIG_IGN, which programs that it starts would inherit
        os.register_at_fork(after_in_child=self._leave_child)

    def _leave_child(self) -> None:
        """A process that the program forks ends by SIGTERM, which `Process.terminate` and pools send theirs; what Slurm
        sends to all of a job ahead of a time limit is still none of its business."""
        if signal.getsignal(signal.SIGTERM) in (self._asked, self._passed):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _passed(self, number: int, frame: Any) -> None:
        pass

    def _asked(self, number: int, frame: Any) -> None:
        self.asked_by = number
        self.at_once()

    def in_vain(self, further: bool) -> bool:
        """Whether "run it again" would be said for ever: all of the time that the scheduler gives has brought nothing.

        SIGTERM may have come early, for another's job.

        Args:
            further: whether this process came further than the one before it.
        """
        return self._code is not None and not further and self.asked_by != signal.SIGTERM

    def end(self, further: bool = True) -> NoReturn:
        """The process ends here: what the program does at its end belongs to its end."""
        flush()
        end_children()
        os._exit(128 + self.asked_by if self._code is None or self.in_vain(further) else self._code)


def end_children() -> None:
    """Loaders' workers, which would wait for this process."""
    for child in multiprocessing.active_children():
        child.kill()
