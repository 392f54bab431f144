"""JAX's own profiler (see `worker.profiling.keras.recording.Profiler`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import jax

from overdrive.worker.profiling.keras.recording import EVERYTHING, Told
from overdrive.worker.profiling.recorder import NotHere

mark = jax.profiler.TraceAnnotation
stop = jax.profiler.stop_trace


def start(folder: str) -> None:
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = EVERYTHING
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise NotHere(f"the program may record these steps with JAX's profiler itself ({error})") from None


def lines(path: Path) -> Iterator[tuple[str, str, Iterable[Told]]]:
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            yield (
                plane.name,
                line.name or "",
                (
                    (event.name, int(event.start_ns), int(event.start_ns) + int(event.duration_ns), dict(event.stats))
                    for event in line.events
                ),
            )
