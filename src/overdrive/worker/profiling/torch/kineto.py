"""Records some steps with torch.profiler (Kineto) and reads what it recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from overdrive.seams.torch.internals import begin_mark, end_mark, is_allocation, on_cpu
from overdrive.worker.profiling.exposed import Work, exposed
from overdrive.worker.profiling.flame import flame_tree
from overdrive.worker.profiling.timeline import PHASE, Timeline
from overdrive.worker.profiling.torch.modules import ModuleNames, ModuleTrack
from overdrive.worker.profiling.torch.spans import GAP, MODULE, Analysis, Span

_USER_SCOPE, _BACKWARD_SCOPE = 7, 1  # torch.autograd's RecordScope
_COPY = "Memcpy HtoD"
_MOST_CELLS = 2000
_STEPS = "overdrive steps"


class Recording:
    """From a step's end to another's. `whole`: Python functions and allocations too, which costs several times more."""

    def __init__(self, timeline: Timeline, whole: bool, modules: ModuleNames | None) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._timeline = timeline
        # Its own tables are not wanted (`acc_events`): they take seconds, and fail where a name is no text.
        self._profile = profile(activities=activities, record_shapes=True, with_stack=whole, profile_memory=whole)
        self._track = ModuleTrack(modules, lambda name: begin_mark(MODULE + name), end_mark) if modules else None
        self._steps: Any = None

    def start(self) -> None:
        self._profile.start()
        self._steps = begin_mark(_STEPS)
        self._timeline.mark_with(lambda phase: begin_mark(PHASE + phase), end_mark)
        if self._track:
            self._track.enter()

    def stop(self) -> None:
        if self._track:
            self._track.leave()
        self._timeline.mark_with(None, None)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        end_mark(self._steps)
        self._profile.stop()

    def write_trace(self, path: Path) -> None:
        self._profile.export_chrome_trace(str(path))

    def read(self, steps: int, counted: set[str]) -> dict[str, Any]:
        """Seconds a step by phase, module and operator, as plain data."""
        events = list(self._kineto())
        window, thread = _window(events)
        numbers = _span_numbers(events, thread)
        spans = [_span(event) for event in numbers]
        analysis = Analysis(spans, counted, window)
        found = {
            "steps": steps,
            "seconds": (window[1] - window[0]) / 1e9 / steps,
            "phases": _a_step(analysis.phases(), steps),
            "flame": flame_tree(analysis.flame, steps),
        }
        work = self._work(events, analysis)
        if work:
            parts, idle = exposed(work, analysis.host, window)
            found["exposed"] = {part: seconds / steps for part, seconds in parts.items()}
            found["idle"] = idle / steps
        cells = sorted(analysis.cells.items(), key=lambda each: -max(each[1].seconds, each[1].device_seconds))
        found["cells"] = [
            {
                "phase": phase,
                "module": module,
                "operator": operator,
                "calls": cell.calls / steps,
                "seconds": cell.seconds / steps,
                "device_seconds": cell.device_seconds / steps,
                "kernel": max(cell.kernels, key=lambda name: cell.kernels[name], default=""),
                "shapes": cell.shapes,
            }
            for (phase, module, operator), cell in cells[:_MOST_CELLS]
            if operator != GAP
        ]
        return found

    def _kineto(self) -> Any:
        return self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]

    def _work(self, events: list[Any], analysis: Analysis) -> list[Work]:
        """What the GPU did; its time is added to the operators that launched it."""
        found = []
        for event in events:
            if on_cpu(event) or event.is_user_annotation():
                continue
            key = analysis.launched.get(event.linked_correlation_id(), ("between", "", "launched elsewhere"))
            phase = "copy" if _name(event).startswith(_COPY) else key[0]
            found.append(Work(event.start_ns(), event.end_ns(), phase))
            cell = analysis.cells.get(key)
            if cell is not None:
                seconds = event.duration_ns() / 1e9
                if not cell.device_seconds:
                    cell.kernels = {}  # those of the GPU alone
                cell.device_seconds += seconds
                cell.kernels[_name(event)] = cell.kernels.get(_name(event), 0.0) + seconds
        return found

    def allocations(self) -> list[tuple[int, int, int]]:
        """Time in nanoseconds, address and size of every allocation (freed ones below zero), in order."""
        found, waiting = [], list(self._profile.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
        while waiting:
            event = waiting.pop()
            waiting += event.children
            if is_allocation(event):
                fields = event.extra_fields
                found.append((event.start_time_ns, int(fields.ptr or 0), int(fields.alloc_size)))
        return sorted(found)

    def phase_times(self) -> list[tuple[int, int, str]]:
        """Start and end in nanoseconds of every marked phase."""
        return [
            (event.start_ns(), event.end_ns(), _name(event)[len(PHASE) :])
            for event in self._kineto()
            if _name(event).startswith(PHASE)
        ]

    def window(self) -> tuple[int, int]:
        return _window(list(self._kineto()))[0]


def _name(event: Any) -> str:
    """PyTorch 2.13 names some Python functions by memory that is another's by now: none of those is looked for."""
    try:
        return str(event.name())
    except UnicodeDecodeError:
        return ""


def _window(events: list[Any]) -> tuple[tuple[int, int], int]:
    for event in events:
        if _name(event) == _STEPS and on_cpu(event):
            return (event.start_ns(), event.end_ns()), event.start_thread_id()
    raise RuntimeError("torch.profiler recorded no mark")


def _span_numbers(events: list[Any], thread: int) -> list[Any]:
    """The spans of the program's thread that are no Python function. On a GPU gradients have a thread of their own,
    during which the program's waits: they belong to the same line."""
    return [
        event
        for event in events
        if on_cpu(event)
        and not event.is_python_function()
        and _name(event) != _STEPS
        and event.duration_ns() > 0
        and (event.start_thread_id() == thread or event.scope() == _BACKWARD_SCOPE or event.fwd_thread_id() == thread)
    ]


def _span(event: Any) -> Span:
    scope, name = event.scope(), _name(event)
    return Span(
        name=name,
        start=event.start_ns(),
        end=event.end_ns(),
        operator=scope != _USER_SCOPE and not event.is_user_annotation(),
        sequence=event.sequence_nr(),
        backward=scope == _BACKWARD_SCOPE,
        # A call of the CUDA runtime has a number of CUPTI's, which may be an operator's as well; it names its operator.
        number=0 if event.linked_correlation_id() else event.correlation_id(),
        shapes=_shapes(event.shapes()),
    )


def _shapes(shapes: list[Any]) -> str:
    """`64x3x32x32, 16x3x3x3`: of the tensors among an operator's arguments."""
    known = ["x".join(map(str, each)) for each in shapes if each and all(isinstance(size, int) for size in each)]
    return ", ".join(known[:3])


def _a_step(phases: dict[str, dict[str, float]], steps: int) -> dict[str, dict[str, float]]:
    return {phase: {what: seconds / steps for what, seconds in each.items()} for phase, each in phases.items()}


def blas() -> str:
    """What PyTorch multiplies matrices with on the CPU, by its own word."""
    told = torch.__config__.show()
    place = told.find("BLAS_INFO=")
    name = told[place + 10 :].split(",", 1)[0].strip() if place >= 0 else ""
    return {"mkl": "MKL", "open": "OpenBLAS", "accelerate": "Accelerate"}.get(name, name or "BLAS")
