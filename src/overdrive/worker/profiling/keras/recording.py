"""Records some steps with a profiler of TensorFlow's family: its own, or JAX's."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from overdrive.worker.profiling.keras.events import STEPS, TraceEvent
from overdrive.worker.profiling.timeline import PHASE, Timeline

EVERYTHING = 3  # the level at which all operators are told
Told = tuple[str, int, int, dict[str, Any]]  # an event's name, start and end in nanoseconds, and details


class Profiler(Protocol):
    """A module `on_NAME.trace`."""

    def start(self, folder: str) -> None:
        """
        Raises:
            NotHere: the program uses this profiler itself.
        """

    def stop(self) -> None: ...
    def mark(self, name: str) -> AbstractContextManager[Any]: ...

    def lines(self, path: Path) -> Iterable[tuple[str, str, Iterable[Told]]]:
        """Of a file that it wrote: device or host, thread, and what happened there."""


class Recording:
    """From a step's end to another's, into `folder`, which is its own."""

    def __init__(self, profiler: Profiler, timeline: Timeline, folder: Path) -> None:
        self._profiler = profiler
        self._timeline = timeline
        self._folder = folder
        self._steps: Any = None
        self.events: list[TraceEvent] = []

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._profiler.start(str(self._folder))
        self._steps = self._mark(STEPS)
        self._timeline.mark_with(lambda phase: self._mark(PHASE + phase), _unmark)

    def stop(self) -> None:
        self._timeline.mark_with(None, None)
        _unmark(self._steps)
        self._profiler.stop()
        paths = sorted(self._folder.glob("plugins/profile/*/*.xplane.pb"))
        lines = (line for path in paths for line in self._profiler.lines(path))
        for thread, (plane, name, told) in enumerate(lines, start=1):
            device = "" if plane.startswith("/host:") else plane
            self.events += [TraceEvent(what, start, end, thread, name, device, more) for what, start, end, more in told]
        shutil.rmtree(self._folder, ignore_errors=True)

    def _mark(self, name: str) -> Any:
        mark = self._profiler.mark(name)
        mark.__enter__()
        return mark


def _unmark(mark: Any) -> None:
    mark.__exit__(None, None, None)
