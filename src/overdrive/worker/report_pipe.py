"""What a trial's process tells the tuner, down its pipe."""

from __future__ import annotations

import contextlib
import os
import time
from typing import BinaryIO

from overdrive.core import messages
from overdrive.core.messages import Beat

_BEAT_SECONDS = 0.5


class ReportPipe:
    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._process = os.getpid()
        self._last_beat = 0.0

    @property
    def forked(self) -> bool:
        """Whether this is a process that the program has forked. It goes on as the program has it, and neither reports
        nor obeys: all such processes have one pair of pipes with the one that is measured."""
        return os.getpid() != self._process

    def handle(self) -> int:
        return self._pipe.fileno()

    def report(self, report: messages.Report) -> None:
        if not self.forked:
            self.report_anyhow(report)

    def report_anyhow(self, report: messages.Report) -> None:
        """Also of a process that the program has forked."""
        self._last_beat = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # the tuner is gone; its reaper ends us
            self._pipe.write(messages.write(report))
            self._pipe.flush()

    def beat(self, *_: object) -> None:
        """Tell the watchdog that there is progress, at most twice a second."""
        self.filling(0, 0)

    def filling(self, done: int, total: int) -> None:
        """The same of tables of samples that are filled."""
        if time.monotonic() - self._last_beat > _BEAT_SECONDS:
            self.report(Beat(done, total))
