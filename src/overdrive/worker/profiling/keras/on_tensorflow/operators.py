"""The operators in a recording of TensorFlow's: which spans they are, and what each is for."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from overdrive.worker.profiling.keras.events import TraceEvent
from overdrive.worker.profiling.keras.layers import layer_of
from overdrive.worker.profiling.keras.moments import DATA, OperatorRun, OperatorSpan
from overdrive.worker.profiling.keras.on_tensorflow.graphs import Graphs
from overdrive.worker.profiling.timeline import GRAPH

_OPERATOR = re.compile(r"^([A-Za-z0-9_.\\/>-]+):(_?[A-Z]\w*)$")
_EAGER = re.compile(r"^EagerLocalExecute: (?!__)(\w+)$")
_NUMBER = re.compile(r"\.\d+$")
_WAIT = "IteratorGetNextOp::DoCompute"
_RUN, _DATA_RUN = "ExecutorState::Process", "InstantiatedCapturedFunction::RunAsync"
_DATA_THREADS = ("tf_data_private_threadpool", "tf_data_iterator_resource")
_TAKES = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")


def operators(events: Sequence[TraceEvent], graphs: Graphs, layers: Set[str]) -> list[OperatorRun]:
    ahead = _made_ahead(events)
    found = []
    for each in events:
        if each.device or each.end <= each.start or each.line.startswith(_DATA_THREADS):
            continue
        if any(start <= each.start < end for start, end in ahead.get(each.thread, ())):
            continue
        run = _run(each, graphs, layers)
        if run is not None:
            found.append(run)
    return found


def _run(event: TraceEvent, graphs: Graphs, layers: Set[str]) -> OperatorRun | None:
    if event.name == _WAIT:
        return OperatorRun(_span(event, _TAKES[0], DATA), "")
    if compiled := event.details.get("hlo_op"):  # XLA made it of many, and does not say of which
        return OperatorRun(_span(event, "XLA " + _NUMBER.sub("", str(compiled)), GRAPH), "")
    if eager := _EAGER.match(event.name):
        operator = eager.group(1)
        return OperatorRun(_span(event, operator, DATA if operator in _TAKES else GRAPH), "")
    named = _OPERATOR.match(event.name)
    if named is None:
        return None
    name, operator = named.groups()
    part = DATA if operator in _TAKES else graphs.part(name) or GRAPH
    return OperatorRun(_span(event, operator, part, layer_of(name, layers)), name)


def _made_ahead(events: Sequence[TraceEvent]) -> dict[int, list[tuple[int, int]]]:
    """When each thread ran functions of `tf.data`: beside the step, which waits for what it needs of that."""
    runs = {each.details.get("id") for each in events if each.name == _DATA_RUN}
    found: dict[int, list[tuple[int, int]]] = {}
    for each in events:
        if each.name == _RUN and each.details.get("id") in runs:
            found.setdefault(each.thread, []).append((each.start, each.end))
    return found


def _span(event: TraceEvent, operator: str, part: str, layer: str = "") -> OperatorSpan:
    return OperatorSpan(event.start, event.end, event.thread, operator, part, layer)
