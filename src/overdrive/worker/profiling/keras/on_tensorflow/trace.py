"""TensorFlow's own profiler, which writes an XSpace (see `worker.profiling.keras.recording.Profiler`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from overdrive.worker.profiling.keras.recording import EVERYTHING, Told
from overdrive.worker.profiling.recorder import NotHere

mark = tf.profiler.experimental.Trace
stop = tf.profiler.experimental.stop


def start(folder: str) -> None:
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=EVERYTHING, python_tracer_level=0, device_tracer_level=1
    )
    try:
        tf.profiler.experimental.start(folder, options=options)
    except tf.errors.AlreadyExistsError:
        raise NotHere("the program records these steps with TensorFlow's profiler itself") from None


def lines(path: Path) -> Iterator[tuple[str, str, Iterable[Told]]]:
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            yield plane.name, line.name, (_told(plane, line, event) for event in line.events)


def _told(plane: Any, line: Any, event: Any) -> Told:
    start = line.timestamp_ns * 1000 + event.offset_ps
    details = {plane.stat_metadata[each.metadata_id].name: _value(plane, each) for each in event.stats}
    return plane.event_metadata[event.metadata_id].name, start // 1000, (start + event.duration_ps) // 1000, details


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return plane.stat_metadata[stat.ref_value].name
    return getattr(stat, kind) if kind else None
