"""What single blocks of a PyTorch program's steps are recorded for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.torch.tracing import compiled
from overdrive.worker.profiling.memory import categories, over_the_step
from overdrive.worker.profiling.recorder import COUNTS, LINES, OPERATORS, TRACE, NotHere
from overdrive.worker.profiling.timeline import Timeline
from overdrive.worker.profiling.torch.counting import Counting
from overdrive.worker.profiling.torch.kineto import Recording, blas
from overdrive.worker.profiling.torch.modules import ModuleNames, ModuleTrack
from overdrive.worker.profiling.torch.observing import Observing
from overdrive.worker.profiling.torch.standing import standing
from overdrive.worker.recording import Recorder


class TorchDetails:
    """See `worker.profiling.recorder.Details`."""

    def __init__(self, timeline: Timeline, folder: Path, names: ModuleNames | None = None) -> None:
        self._timeline = timeline
        self._folder = folder
        self._models: dict[int, Any] = {}
        self._active: Any = None
        self._track: Any = None
        self._names = names or ModuleNames()
        self._counted: set[str] = set()
        self._standing: Any = None
        self._observing = Observing(timeline)
        self._watched = False

    def __call__(self, seams: Seams) -> None:
        seams.optimizer_made.subscribe(lambda _, models: self._models.update((id(each), each) for each in models))
        self._observing(seams)

    def _own_compile(self) -> bool:
        modules = [module for model in self._models.values() for module in model.modules()]
        return any(compiled(module) for module in modules)

    def _stands(self, recorder: Recorder) -> tuple[dict[str, int], dict[int, str]]:
        return standing(recorder.optimizers, list(self._models.values()))

    def begin(self, what: str, recorder: Recorder) -> None:
        if what == COUNTS:
            if self._own_compile():
                raise NotHere("the program compiles its model, whose operators are no longer PyTorch's")
            self._track = ModuleTrack(self._names)
            self._track.enter()
            self._active = Counting(lambda: (self._timeline.phase, self._track.current))
            self._active.__enter__()
        elif what in (OPERATORS, TRACE):
            if what == TRACE:
                self._standing = self._stands(recorder)
            names = None if self._own_compile() else self._names
            self._active = Recording(self._timeline, whole=what == TRACE, modules=names)
            self._active.start()
        elif what == LINES:
            if self._own_compile():
                raise NotHere("the program compiles its model, which watching each call would make it do again")
            self._observing.start()

    def end(self, what: str, steps: int, seconds: float) -> Mapping[str, Any]:
        active = self._active
        if what == COUNTS:
            active.__exit__(None, None, None)
            self._track.leave()
            self._counted = {name for _, _, name in active.cells}
            return {COUNTS: _counts(active, steps)}
        if what == OPERATORS:
            active.stop()
            return {OPERATORS: {**active.read(steps, self._counted), "wall": seconds / steps, "blas": blas()}}
        if what == LINES:
            self._observing.stop(steps)
            self._watched = True
            return self.later()
        active.stop()
        with contextlib.suppress(OSError):
            active.write_trace(self._folder / "trace.json")
        return {"memory": self._memory(active)}

    def later(self) -> Mapping[str, Any]:
        return {LINES: self._observing.report()} if self._watched else {}

    def _memory(self, active: Any) -> dict[str, Any]:
        size, places = self._standing
        window = active.window()
        # The profiler does not tell of memory freed that was there before it began: of the gradients, we know.
        allocations = sorted([*active.allocations(), *self._observing.freed])
        changes = categories(allocations, active.phase_times(), window, places)
        return over_the_step(changes, size, window)


def _counts(active: Counting, steps: int) -> dict[str, Any]:
    names = ("phase", "module", "operator", "calls", "flops", "bytes")
    return {
        "kinds": {kind: amount / steps for kind, amount in active.kinds.items()},
        "unknown": sorted(active.unknown),
        "cells": [
            dict(zip(names, (*place, *(amount / steps for amount in cell)), strict=True))
            for place, cell in active.cells.items()
        ],
    }
