"""All that a trial records for a profile: told by the guest when a block of steps begins and ends."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from overdrive.recording import Recorder
from overdrive.seams.hub import Seams, reason_of
from overdrive.trials.profiling.timeline import Timeline

TIMES, COUNTS, OPERATORS, LINES, TRACE = "times", "counts", "operators", "lines", "trace"


class Profiler:
    """`kind`: "times" (the phases, in blocks recorded so) or "details" (what single blocks are recorded for)."""

    def __init__(self, kind: str, folder: str) -> None:
        self._kind = kind
        self._folder = Path(folder)
        self._models: dict[int, Any] = {}
        self._what = ""
        self._began = 0.0
        self._active: Any = None
        self._track: Any = None
        self._counted: set[str] = set()
        self._found: dict[str, Any] = {}
        self._left_out: dict[str, str] = {}
        self._standing: Any = None
        self.timeline = Timeline(_device_waits if _has_gpu() else None)
        self._observing: Any = None
        self._timed: Any = self.timeline  # what is started and stopped for a block of times

    def __call__(self, seams: Seams) -> None:
        """Call when the framework is there."""
        if self._kind == "details":
            from overdrive.trials.profiling.observing import Observing

            self._observing = Observing(self.timeline)
            seams.optimizer_made.subscribe(lambda _, models: self._models.update((id(each), each) for each in models))
            self._observing(seams)
        if self._kind == "times" and seams.frameworks[-1] == "torch":
            from overdrive.trials.profiling.blocks import TimedBlocks

            self._timed = TimedBlocks(self.timeline, seams)
        else:
            self.timeline(seams)

    def begin(self, what: str, recorder: Recorder) -> None:
        """A block begins, to be recorded as `what`; "" for one that is not."""
        self._what = what
        try:
            self._begin(what, recorder)
        except Exception as error:
            self._left_out[what] = _reason(error)
            self._what = ""
        self._began = time.perf_counter()

    def end(self, steps: int) -> None:
        if not self._what:
            return
        seconds = time.perf_counter() - self._began
        try:
            self._end(steps, seconds)
        except Exception as error:
            self._left_out[self._what] = _reason(error)
        self._what = ""

    def report(self) -> dict[str, Any]:
        self.lines()
        if self._kind == "times":
            return {"seconds": self.timeline.seconds, "total": self.timeline.total, "left_out": self._left_out}
        return {**self._found, "left_out": self._left_out}

    def _own_compile(self) -> bool:
        modules = [module for model in self._models.values() for module in model.modules()]
        return any(type(module).__name__ == "OptimizedModule" for module in modules)

    def _begin(self, what: str, recorder: Recorder) -> None:
        if what == TIMES:
            self._timed.start()
        elif what == COUNTS:
            from overdrive.trials.profiling.counting import Counting
            from overdrive.trials.profiling.modules import ModuleTrack

            if self._own_compile():
                raise NotHere("the program compiles its model, whose operators are no longer PyTorch's")
            self._track = ModuleTrack()
            self._track.enter()
            self._active = Counting(lambda: (self.timeline.phase, self._track.current))
            self._active.__enter__()
        elif what in (OPERATORS, TRACE):
            from overdrive.trials.profiling.kineto import Recording
            from overdrive.trials.profiling.memory import standing

            if what == TRACE:
                self._standing = standing(recorder.optimizers, list(self._models.values()))
            self._active = Recording(self.timeline, whole=what == TRACE, modules=not self._own_compile())
            self._active.start()
        elif what == LINES:
            if self._own_compile():
                raise NotHere("the program compiles its model, which watching each call would make it do again")
            self._observing.start()

    def _end(self, steps: int, seconds: float) -> None:
        what, active = self._what, self._active
        if what == TIMES:
            self._timed.stop()
        elif what == COUNTS:
            active.__exit__(None, None, None)
            self._track.leave()
            self._counted = {name for _, _, name in active.cells}
            self._found[COUNTS] = {
                "kinds": {kind: amount / steps for kind, amount in active.kinds.items()},
                "unknown": sorted(active.unknown),
                "cells": [
                    dict(
                        zip(
                            ("phase", "module", "operator", "calls", "flops", "bytes"),
                            (*place, *(amount / steps for amount in cell)),
                            strict=True,
                        )
                    )
                    for place, cell in active.cells.items()
                ],
            }
        elif what == OPERATORS:
            active.stop()
            self._found[OPERATORS] = {**active.read(steps, self._counted), "wall": seconds / steps, **_libraries()}
        elif what == LINES:
            self._observing.stop(steps)
            self._found[LINES] = self._observing.report()
        elif what == TRACE:
            active.stop()
            with contextlib.suppress(OSError):
                active.write_trace(self._folder / "trace.json")
            self._found["memory"] = self._memory(active)

    def _memory(self, active: Any) -> dict[str, Any]:
        from overdrive.trials.profiling.memory import categories, over_the_step

        size, places = self._standing
        window = active.window()
        # The profiler does not tell of memory freed that was there before it began: of the gradients, we know.
        allocations = sorted([*active.allocations(), *self._observing.freed])
        changes = categories(allocations, active.phase_times(), window, places)
        return over_the_step(changes, size, window)

    def lines(self) -> None:
        """Bring up to date what is watched in all steps."""
        if self._observing is not None and LINES in self._found:
            self._found[LINES] = self._observing.report()


class NotHere(Exception):
    """Something cannot be recorded of this program; the message is the reason."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, NotHere) else reason_of(error)


def _libraries() -> dict[str, str]:
    from overdrive.trials.profiling.kineto import blas

    return {"blas": blas()}


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _device_waits() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
