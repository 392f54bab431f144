"""What single blocks are recorded for where steps are graphs: TensorFlow and JAX, whose profilers are of one family."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol

from overdrive.seams.hub import Seams
from overdrive.worker.profiling.flame import flame_tree
from overdrive.worker.profiling.keras import events as recorded
from overdrive.worker.profiling.keras.layers import names_of
from overdrive.worker.profiling.keras.moments import OperatorRun, moments
from overdrive.worker.profiling.keras.recording import Recording
from overdrive.worker.profiling.keras.standing import standing
from overdrive.worker.profiling.keras.tally import Count, cells_of, counts_of, phases_of
from overdrive.worker.profiling.recorder import COUNTS, OPERATORS, TRACE, NotHere
from overdrive.worker.recording import Recorder


class Reader(Protocol):
    """A backend's own: what it records with, and what its events say."""

    def __call__(self, seams: Seams) -> None: ...

    def recording(self, batch: int) -> Recording:
        """A new one; `batch`: samples a step."""

    def runs(self, events: Sequence[recorded.TraceEvent], layers: Set[str]) -> list[OperatorRun]:
        """The operators in a recording."""

    def shapes(self, run: OperatorRun) -> str: ...

    def count(self, run: OperatorRun) -> Count: ...

    def memory(
        self,
        there: dict[str, int],
        events: Sequence[recorded.TraceEvent],
        runs: Sequence[OperatorRun],
        window: tuple[int, int],
    ) -> dict[str, Any]:
        """`there`: bytes by category that stand between steps."""


class GraphDetails:
    """See `worker.profiling.recorder.Details`."""

    def __init__(self, reader: Reader, folder: Path, models: Mapping[int, Any]) -> None:
        self._reader = reader
        self._folder = folder
        self._models = models
        self._optimizers: list[Any] = []
        self._active: Recording | None = None

    def __call__(self, seams: Seams) -> None:
        self._reader(seams)

    def begin(self, what: str, recorder: Recorder) -> None:
        self._optimizers = recorder.optimizers
        self._active = self._reader.recording(round(recorder.samples / max(1, recorder.clock.steps)))
        self._active.start()

    def end(self, what: str, steps: int, seconds: float) -> Mapping[str, Any]:
        assert self._active is not None
        self._active.stop()
        events = self._active.events
        window = recorded.window(events)
        runs = self._reader.runs(events, names_of(self._models.values()))
        if what == TRACE:
            inside = [each for each in events if window[0] <= each.start <= window[1]]
            with contextlib.suppress(OSError):
                recorded.write_trace(inside, self._folder / "trace.json")
            there = standing(self._models.values(), self._optimizers)
            return {"memory": self._reader.memory(there, events, runs, window)}
        if recorded.on_a_gpu(events):
            raise NotHere("operators on a GPU are not read from such a recording yet")
        found = moments([run.span for run in runs], recorded.steady(recorded.phases(events)), window)
        counts = counts_of(found, runs, steps, self._reader.count)
        if what == COUNTS:
            return {COUNTS: counts}
        told = {
            "steps": steps,
            "seconds": (window[1] - window[0]) / 1e9 / steps,
            "phases": phases_of(found, steps),
            "flame": flame_tree(found.flame, steps),
            "cells": cells_of(found, runs, steps, self._reader.shapes),
            "wall": seconds / steps,
        }
        return {OPERATORS: told, COUNTS: counts}

    def later(self) -> Mapping[str, Any]:
        return {}
