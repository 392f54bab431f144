"""What single blocks of a Keras program's steps are recorded for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from overdrive.recording import Recorder
from overdrive.seams.hub import Seams
from overdrive.trials.profiling.flame import flame_tree
from overdrive.trials.profiling.keras.counting import as_traced, count, plain, shapes
from overdrive.trials.profiling.keras.graphs import Graphs
from overdrive.trials.profiling.keras.memory import memory_of, standing
from overdrive.trials.profiling.keras.moments import GAP, Moments, moments
from overdrive.trials.profiling.keras.operators import Run, operators
from overdrive.trials.profiling.keras.trace import Recording, phases, write_trace
from overdrive.trials.profiling.recorder import COUNTS, LINES, OPERATORS, TRACE, NotHere
from overdrive.trials.profiling.timeline import Timeline

_MOST_CELLS = 2000


class KerasDetails:
    """See `trials.profiling.recorder.Details`."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._graphs = Graphs()
        self._models: dict[int, Any] = {}
        self._optimizers: list[Any] = []
        self._active: Recording | None = None
        self._batch = 0

    def __call__(self, seams: Seams) -> None:
        self._graphs(seams)
        seams.model_compiled.subscribe(self._compiled)

    def _compiled(self, model: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._models[id(model)] = model
        return call(*args, **kwargs)

    def begin(self, what: str, recorder: Recorder) -> None:
        if what == LINES:
            raise NotHere("what to edit is looked for in PyTorch programs only")
        self._optimizers = recorder.optimizers
        self._batch = round(recorder.samples / max(1, recorder.clock.steps))
        self._active = Recording(self._timeline, self._folder / "tensorflow")
        self._active.start()

    def end(self, what: str, steps: int, seconds: float) -> Mapping[str, Any]:
        assert self._active is not None
        self._active.stop()
        events = self._active.events()
        window = self._active.window(events)
        self._graphs.read()
        runs = operators(events, self._graphs, frozenset(self._layers()))
        if what == TRACE:
            inside = [each for each in events if window[0] <= each.start <= window[1]]
            with contextlib.suppress(OSError):
                write_trace(inside, self._folder / "trace.json")
            there = standing(self._models.values(), self._optimizers)
            return {"memory": memory_of(there, events, runs, self._graphs, window)}
        if any(each.device.startswith("/device:GPU") for each in events):
            raise NotHere("operators on a GPU are not read from TensorFlow's recording yet")
        found = moments([run.span for run in runs], phases(events), window)
        counts = self._counts(found, runs, steps)
        if what == COUNTS:
            return {COUNTS: counts}
        recorded = {
            "steps": steps,
            "seconds": (window[1] - window[0]) / 1e9 / steps,
            "phases": {name: {what: s / steps for what, s in each.items()} for name, each in found.phases.items()},
            "flame": flame_tree(found.flame, steps),
            "cells": self._cells(found, runs, steps),
            "wall": seconds / steps,
        }
        return {OPERATORS: recorded, COUNTS: counts}

    def later(self) -> Mapping[str, Any]:
        return {}

    def _layers(self) -> Iterable[str]:
        for model in self._models.values():
            yield model.name
            yield from (layer.name for layer in model._flatten_layers())

    def _cells(self, found: Moments, runs: Sequence[Run], steps: int) -> list[dict[str, Any]]:
        names = {key: run.name for key, run in zip(found.keys, runs, strict=True)}
        cells = []
        for key, cell in sorted(found.cells.items(), key=lambda each: -each[1].seconds)[:_MOST_CELLS]:
            phase, layer, operator = key
            if operator == GAP:
                continue
            traced = as_traced(plain(operator), self._graphs.operation(names[key]), self._batch)
            cells.append(
                {
                    "phase": phase,
                    "module": layer,
                    "operator": operator,
                    "calls": cell.calls / steps,
                    "seconds": cell.seconds / steps,
                    "device_seconds": 0.0,
                    "kernel": operator,
                    "shapes": shapes(traced),
                }
            )
        return cells

    def _counts(self, found: Moments, runs: Sequence[Run], steps: int) -> dict[str, Any]:
        cells: dict[tuple[str, str, str], list[float]] = {}
        kinds: dict[str, float] = {}
        unknown: set[str] = set()
        for run, key in zip(runs, found.keys, strict=True):
            if key not in found.cells:
                continue
            one = count(run.span.operator, self._graphs.operation(run.name), self._batch)
            if not one.known:
                unknown.add(run.span.operator)
            cell = cells.setdefault(key, [0.0, 0.0, 0.0])
            for place, amount in enumerate((1.0, one.flops, one.bytes)):
                cell[place] += amount / steps
            if one.format:
                kinds[one.format] = kinds.get(one.format, 0.0) + one.flops / steps
        names = ("phase", "module", "operator", "calls", "flops", "bytes")
        return {
            "kinds": kinds,
            "unknown": sorted(unknown),
            "cells": [dict(zip(names, (*key, *cell), strict=True)) for key, cell in cells.items()],
        }
