"""Records some steps with JAX's own profiler, and reads what it recorded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from overdrive.worker.profiling.keras.events import STEPS, Event
from overdrive.worker.profiling.recorder import NotHere
from overdrive.worker.profiling.timeline import PHASE, Timeline

_EVERYTHING = 3  # the level at which all operations are told


class Recording:
    """From a step's end to another's, into `folder`, which is its own."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._steps: Any = None
        self._events: list[Event] = []

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = _EVERYTHING
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(str(self._folder), profiler_options=options)
        except RuntimeError as error:
            raise NotHere(f"the program may record these steps with JAX's profiler itself ({error})") from None
        self._steps = _mark(STEPS)
        self._timeline.mark_with(lambda phase: _mark(PHASE + phase), _unmark)

    def stop(self) -> None:
        self._timeline.mark_with(None, None)
        _unmark(self._steps)
        jax.profiler.stop_trace()
        for path in sorted(self._folder.glob("plugins/profile/*/*.xplane.pb")):
            self._events = list(_events(jax.profiler.ProfileData.from_file(str(path))))
        shutil.rmtree(self._folder, ignore_errors=True)

    def events(self) -> list[Event]:
        return self._events


def _mark(name: str) -> Any:
    mark = jax.profiler.TraceAnnotation(name)
    mark.__enter__()
    return mark


def _unmark(mark: Any) -> None:
    mark.__exit__(None, None, None)


def _events(data: Any) -> Iterator[Event]:
    thread = 0
    for plane in data.planes:
        device = "" if plane.name.startswith("/host:") else plane.name
        for line in plane.lines:
            thread += 1
            for event in line.events:
                start, length = int(event.start_ns), int(event.duration_ns)
                yield Event(event.name, start, start + length, thread, line.name or "", device, dict(event.stats))
