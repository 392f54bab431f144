"""All that a trial records for a profile: told by the worker when a block of steps begins and ends."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from overdrive.seams.hub import Seams
from overdrive.seams.points import reason_of
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.recording import Recorder

TIMES, COUNTS, OPERATORS, LINES, TRACE = "times", "counts", "operators", "lines", "trace"


class NotHere(Exception):
    """Something cannot be recorded of this program; the message is the reason."""


class Details(Protocol):
    """What single blocks are recorded for (all of the above but the times), in one framework."""

    def __call__(self, seams: Seams) -> None: ...

    def begin(self, what: str, recorder: Recorder) -> None:
        """
        Raises:
            NotHere: with the reason.
        """

    def end(self, what: str, steps: int, seconds: float) -> Mapping[str, Any]:
        """What was found, by its name in the report."""

    def later(self) -> Mapping[str, Any]:
        """What has been seen since, in steps that were not recorded."""


class Timed(Protocol):
    """A block of steps whose phases are timed."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Package(Protocol):
    """The module `overdrive.worker.profiling.NAME`. What it makes is made when the framework is there."""

    def make_timeline(self, seams: Seams) -> Timeline:
        """One that the seams tell of the phases."""

    def make_timed(self, seams: Seams) -> tuple[Timeline, Timed]:
        """One that is told of the phases in blocks that are timed, and what begins and ends these."""

    def make_details(self, timeline: Timeline, folder: Path) -> Details: ...


def package_of(framework: str) -> Package:
    return cast(Package, importlib.import_module(f"overdrive.worker.profiling.{framework}"))


class Profiler:
    """`kind`: "times" (the phases, in blocks recorded so) or "details" (what single blocks are recorded for)."""

    def __init__(self, framework: str, kind: str, folder: str, seams: Seams) -> None:
        package = package_of(framework)
        self._what = ""
        self._began = 0.0
        self._found: dict[str, Any] = {}
        self._left_out: dict[str, str] = {}
        self._timed: Timed | None = None
        self._details: Details | None = None
        if kind == "times":
            self._timeline, self._timed = package.make_timed(seams)
        else:
            self._timeline = package.make_timeline(seams)
            self._details = package.make_details(self._timeline, Path(folder))
            self._details(seams)

    def begin(self, what: str, recorder: Recorder) -> None:
        """A block begins, to be recorded as `what`; "" for one that is not."""
        self._what = what
        try:
            if what == TIMES and self._timed:
                self._timed.start()
            elif self._details:
                self._details.begin(what, recorder)
        except Exception as error:
            self._leave_out(error)
        self._began = time.perf_counter()

    def lead_over(self) -> None:
        """What of the block was for warming up is over. Only blocks that are timed have that."""
        if self._what == TIMES:
            self._timeline.start_again()

    def end(self, steps: int) -> None:
        if not self._what:
            return
        seconds = time.perf_counter() - self._began
        try:
            if self._what == TIMES and self._timed:
                self._timed.stop()
            elif self._details:
                self._found |= self._details.end(self._what, steps, seconds)
        except Exception as error:
            self._leave_out(error)
        self._what = ""

    def _leave_out(self, error: Exception) -> None:
        self._left_out[self._what] = str(error) if isinstance(error, NotHere) else reason_of(error)
        self._what = ""

    def report(self) -> dict[str, Any]:
        if self._details is None:
            line = self._timeline
            return {"seconds": line.seconds, "looks": line.looks, "total": line.total, "left_out": self._left_out}
        self._found |= self._details.later()
        return {**self._found, "left_out": self._left_out}
