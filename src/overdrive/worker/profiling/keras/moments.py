"""What a recording of a graph comes to: every moment of the steps by phase, layer and operator. Imports no framework.

Operators of one graph run on several threads at once. A moment in which some do belongs to them in equal parts, so
that all of them together add up to the time that went by; one in which none does and a batch is waited for belongs to
the data, and one in which nothing runs to Python and launching.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from overdrive.worker.profiling.timeline import BETWEEN, GRAPH

DATA = "data"
GAP = ""  # the operator's name where there is none


@dataclass(frozen=True)
class OperatorSpan:
    """One operator's run on one thread, in nanoseconds."""

    start: int
    end: int
    thread: int
    operator: str  # its type: "Conv2D"
    part: str  # what it is for, in a graph that trains
    layer: str = ""


@dataclass(frozen=True)
class OperatorRun:
    span: OperatorSpan
    name: str  # in its graph; "" for what ran in none that is known


@dataclass
class Cell:
    """All runs of one operator in one phase of one layer."""

    calls: int = 0
    seconds: float = 0.0


Key = tuple[str, str, str]  # phase, layer, operator
Phase = tuple[int, int, str]  # start, end, name


@dataclass
class Moments:
    cells: dict[Key, Cell] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)  # as `insight.profile.split` has them
    flame: dict[tuple[str, ...], float] = field(default_factory=dict)
    keys: list[Key] = field(default_factory=list)  # of each span, in their order

    def add(self, phase: str, key: Key, what: str, seconds: float) -> None:
        """`what`: "operators", "gap", or the part of a graph that it is."""
        self.cells.setdefault(key, Cell()).seconds += seconds
        inside = self.phases.setdefault(phase, {})
        inside[what] = inside.get(what, 0.0) + seconds
        top = "python" if what == "gap" else key[0]
        path = (top, *key[1].split(".")) if key[1] else (top,)
        path += (key[2] or ("in the train function" if phase == GRAPH else "outside of it"),)
        self.flame[path] = self.flame.get(path, 0.0) + seconds


def moments(spans: Sequence[OperatorSpan], phases: Sequence[Phase], window: tuple[int, int]) -> Moments:
    """Of the window, from the spans of all threads and the marks of the program's own."""
    found = Moments()
    marks = _innermost(((start, end, name) for start, end, name in phases), window)
    pieces = list(_pieces(spans, window))
    borders = sorted({window[0], window[1], *(at for each in (*pieces, *marks) for at in each[:2])})
    pieces.sort(key=lambda each: each[0])
    running: list[tuple[int, int, OperatorSpan]] = []
    coming, mark = 0, 0
    for start, end in pairwise(borders):
        running = [each for each in running if each[1] > start]
        while coming < len(pieces) and pieces[coming][0] <= start:
            running.append(pieces[coming])
            coming += 1
        while mark < len(marks) and marks[mark][1] <= start:
            mark += 1
        phase = marks[mark][2] if mark < len(marks) and marks[mark][0] <= start else BETWEEN
        _divide(found, phase, [span for _, _, span in running], (end - start) / 1e9)
    for span in spans:
        _count(found, span, phases, window)
    return found


def _divide(found: Moments, phase: str, running: list[OperatorSpan], seconds: float) -> None:
    working = [each for each in running if each.part != DATA]
    if working:
        for each in working:
            inside = each.part if phase == GRAPH else "operators"
            found.add(phase, _key(phase, each), inside, seconds / len(working))
    elif running and phase == GRAPH:
        found.add(phase, _key(phase, running[0]), DATA, seconds)
    elif running and phase == DATA:
        found.add(phase, _key(phase, running[0]), "operators", seconds)
    else:
        found.add(phase, (phase, "", GAP), "gap", seconds)


def _key(phase: str, span: OperatorSpan) -> Key:
    return (span.part if phase == GRAPH else phase), span.layer, span.operator


def _count(found: Moments, span: OperatorSpan, phases: Sequence[Phase], window: tuple[int, int]) -> None:
    inner = [each for each in phases if each[0] <= span.start < each[1]]
    phase = min(inner, key=lambda each: each[1] - each[0])[2] if inner else BETWEEN
    found.keys.append(_key(phase, span))
    cell = found.cells.get(found.keys[-1])
    if cell is not None and window[0] <= span.start < window[1]:
        cell.calls += 1


def _pieces(spans: Sequence[OperatorSpan], window: tuple[int, int]) -> Iterator[tuple[int, int, OperatorSpan]]:
    """Of each thread the innermost span at every moment."""
    threads: dict[int, list[tuple[int, int, Any]]] = {}
    for each in spans:
        threads.setdefault(each.thread, []).append((each.start, each.end, each))
    for thread in threads.values():
        yield from _innermost(thread, window)


def _innermost(intervals: Iterable[tuple[int, int, Any]], window: tuple[int, int]) -> list[tuple[int, int, Any]]:
    """Nested intervals as ones that follow each other, within the window, in order."""
    found: list[tuple[int, int, Any]] = []
    stack: list[tuple[int, int, Any]] = []
    at = window[0]

    def until(moment: int) -> None:
        nonlocal at
        moment = min(moment, window[1])
        if stack and moment > max(at, stack[-1][0]):
            found.append((max(at, stack[-1][0]), moment, stack[-1][2]))
        at = max(at, moment)

    for each in sorted(intervals, key=lambda one: (one[0], -one[1])):
        while stack and stack[-1][1] <= each[0]:
            until(stack[-1][1])
            stack.pop()
        until(each[0])
        stack.append(each)
    while stack:
        until(stack[-1][1])
        stack.pop()
    return found
