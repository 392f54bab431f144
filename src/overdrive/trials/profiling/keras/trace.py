"""Records some steps with TensorFlow's own profiler, and reads what it recorded (an XSpace)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from overdrive.trials.profiling.recorder import NotHere
from overdrive.trials.profiling.timeline import PHASE, Timeline

_STEPS = "overdrive steps"
_EVERYTHING = 3  # the level at which all operators are told, and their shapes


@dataclass(frozen=True)
class Event:
    """Times in nanoseconds; `thread` is a number within the recording."""

    name: str
    start: int
    end: int
    thread: int
    line: str  # the thread's name
    device: str  # "" for the host
    details: dict[str, Any]


class Recording:
    """From a step's end to another's, into `folder`, which is its own."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._steps: Any = None
        self._space: Any = None

    def start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_EVERYTHING, python_tracer_level=0, device_tracer_level=1
        )
        try:
            tf.profiler.experimental.start(str(self._folder), options=options)
        except tf.errors.AlreadyExistsError:
            raise NotHere("the program records these steps with TensorFlow's profiler itself") from None
        self._steps = _mark(_STEPS)
        self._timeline.mark_with(lambda phase: _mark(PHASE + phase), _unmark)

    def stop(self) -> None:
        self._timeline.mark_with(None, None)
        _unmark(self._steps)
        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        for path in sorted(self._folder.glob("plugins/profile/*/*.xplane.pb")):
            space.MergeFromString(path.read_bytes())
        shutil.rmtree(self._folder, ignore_errors=True)
        self._space = space

    def events(self) -> list[Event]:
        return list(_events(self._space))

    def window(self, events: list[Event]) -> tuple[int, int]:
        """
        Raises:
            NotHere: the recording is not there.
        """
        for each in events:
            if each.name == _STEPS:
                return each.start, each.end
        raise NotHere("TensorFlow's profiler recorded no steps")


def phases(events: list[Event]) -> list[tuple[int, int, str]]:
    return [(each.start, each.end, each.name[len(PHASE) :]) for each in events if each.name.startswith(PHASE)]


def write_trace(events: list[Event], path: Path) -> None:
    """As Perfetto and Chrome read it."""
    told = [
        {
            "ph": "X",
            "name": each.name.removeprefix("overdrive "),
            "ts": each.start / 1e3,
            "dur": (each.end - each.start) / 1e3,
            "pid": each.device or "host",
            "tid": each.thread,
            "args": {name: value for name, value in each.details.items() if isinstance(value, (int, float, str))},
        }
        for each in events
    ]
    path.write_text(json.dumps({"traceEvents": told}), encoding="utf-8")


def _mark(name: str) -> Any:
    mark = tf.profiler.experimental.Trace(name)
    mark.__enter__()
    return mark


def _unmark(mark: Any) -> None:
    mark.__exit__(None, None, None)


def _events(space: Any) -> Iterator[Event]:
    thread = 0
    for plane in space.planes:
        device = "" if plane.name.startswith("/host:") else plane.name
        for line in plane.lines:
            thread += 1
            for event in line.events:
                start = line.timestamp_ns * 1000 + event.offset_ps
                details = {plane.stat_metadata[each.metadata_id].name: _value(plane, each) for each in event.stats}
                name = plane.event_metadata[event.metadata_id].name
                yield Event(
                    name, start // 1000, (start + event.duration_ps) // 1000, thread, line.name, device, details
                )


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return plane.stat_metadata[stat.ref_value].name
    return getattr(stat, kind) if kind else None
