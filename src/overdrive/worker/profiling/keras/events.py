"""What a profiler of TensorFlow's family recorded, whichever framework asked it to. Imports neither."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.worker.profiling.recorder import NotHere
from overdrive.worker.profiling.timeline import GRAPH, PHASE

INTERRUPTED = "graph, interrupted"
_FAR_LONGER = 5
STEPS = "overdrive steps"  # how the steps that are recorded are marked


@dataclass(frozen=True)
class TraceEvent:
    """Times in nanoseconds; `thread` is a number within the recording."""

    name: str
    start: int
    end: int
    thread: int
    line: str  # the thread's name
    device: str  # "" for the host
    details: dict[str, Any]


def window(events: Sequence[TraceEvent]) -> tuple[int, int]:
    """From the first step's begin to the last one's end.

    Raises:
        NotHere: the recording is not there.
    """
    for each in events:
        if each.name == STEPS:
            return each.start, each.end
    raise NotHere("the framework's profiler recorded no steps")


def phases(events: Sequence[TraceEvent]) -> list[tuple[int, int, str]]:
    return [(each.start, each.end, each.name[len(PHASE) :]) for each in events if each.name.startswith(PHASE)]


def steady(phases: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Calls of the train function that took far longer than usual, under a name of their own: no share of a step is to
    be judged by them. JAX compiles its step anew for each shape of batch (0.7 s at the end of an epoch, whose last
    batch is smaller, beside steps of 20 ms)."""
    lengths = [end - start for start, end, name in phases if name == GRAPH]
    limit = _FAR_LONGER * statistics.median(lengths) if lengths else 0.0
    return [(s, e, INTERRUPTED if name == GRAPH and e - s > limit else name) for s, e, name in phases]


def on_a_gpu(events: Sequence[TraceEvent]) -> bool:
    return any(each.device.startswith("/device:GPU") for each in events)


def write_trace(events: Sequence[TraceEvent], path: Path) -> None:
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
