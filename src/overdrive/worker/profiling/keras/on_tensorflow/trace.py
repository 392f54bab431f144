"""Records some steps with TensorFlow's own profiler, and reads what it recorded (an XSpace)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from overdrive.worker.profiling.keras.events import STEPS, Event
from overdrive.worker.profiling.recorder import NotHere
from overdrive.worker.profiling.timeline import PHASE, Timeline

_EVERYTHING = 3  # the level at which all operators are told, and their shapes


def renew_functions() -> None:
    """Has TensorFlow set up the program's graphs anew at their next call, as they are.

    TensorFlow 2.21 does not heed the level asked for ("host_tracer_level expects an i value"), and leaves out operators
    that it has come to know as cheap, by a running mean of what their runs took: after some 90 runs of a small model
    nothing of an optimizer is told. A graph that is set up anew knows nothing of its operators yet. What differs in the
    configuration by which functions are told apart is a number that nothing heeds.
    """
    with contextlib.suppress(ImportError, AttributeError):  # of a TensorFlow to come
        from tensorflow.python.eager import context

        now = context.context()
        config = tf.compat.v1.ConfigProto.FromString(now.function_call_options.config_proto_serialized)
        config.experimental.session_metadata.version += 1
        now.function_call_options = context.FunctionCallOptions(now.function_call_options.executor_type, config)


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
        self._steps = _mark(STEPS)
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
