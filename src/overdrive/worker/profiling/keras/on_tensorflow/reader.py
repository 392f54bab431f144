"""What TensorFlow's recordings say, by the graphs that the program traced."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.internals import renew_functions
from overdrive.worker.profiling.keras.events import TraceEvent
from overdrive.worker.profiling.keras.moments import OperatorRun
from overdrive.worker.profiling.keras.on_tensorflow import trace
from overdrive.worker.profiling.keras.on_tensorflow.counting import as_traced, count, plain, shapes
from overdrive.worker.profiling.keras.on_tensorflow.graphs import Graphs
from overdrive.worker.profiling.keras.on_tensorflow.memory import memory_of
from overdrive.worker.profiling.keras.on_tensorflow.operators import operators
from overdrive.worker.profiling.keras.recording import Recording
from overdrive.worker.profiling.keras.tally import Count
from overdrive.worker.profiling.timeline import Timeline


class GraphReader:
    """See `graph_details.Reader`."""

    def __init__(self, timeline: Timeline, folder: Path) -> None:
        self._timeline = timeline
        self._folder = folder
        self._graphs = Graphs()
        self._batch = 0
        self._renewed = False

    def __call__(self, seams: Seams) -> None:
        self._graphs(seams)

    def recording(self, batch: int) -> Recording:
        self._batch = batch
        if not self._renewed:  # once: the step that is recorded first is for its counts, not for its time
            self._renewed = True
            renew_functions()
        return Recording(trace, self._timeline, self._folder / "tensorflow")

    def runs(self, events: Sequence[TraceEvent], layers: Set[str]) -> list[OperatorRun]:
        self._graphs.read()
        return operators(events, self._graphs, layers)

    def shapes(self, run: OperatorRun) -> str:
        operation = self._graphs.operation(run.name)
        return shapes(as_traced(plain(run.span.operator), operation, self._batch))

    def count(self, run: OperatorRun) -> Count:
        return count(run.span.operator, self._graphs.operation(run.name), self._batch)

    def memory(
        self, there: dict[str, int], events: Sequence[TraceEvent], runs: Sequence[OperatorRun], window: tuple[int, int]
    ) -> dict[str, Any]:
        return memory_of(there, events, runs, self._graphs, window)
