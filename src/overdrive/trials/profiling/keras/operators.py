"""The operators in a recording of TensorFlow's: which spans they are, and what each is for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.trials.profiling.keras.graphs import Graphs, layer_of
from overdrive.trials.profiling.keras.moments import DATA, Span
from overdrive.trials.profiling.keras.trace import Event
from overdrive.trials.profiling.timeline import GRAPH

_OPERATOR = re.compile(r"^([A-Za-z0-9_.\\/>-]+):(_?[A-Z]\w*)$")
_WAIT = "IteratorGetNextOp::DoCompute"
_TAKES = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")


@dataclass(frozen=True)
class Run:
    span: Span
    name: str  # in its graph
    given: str  # types and shapes


def operators(events: Sequence[Event], graphs: Graphs, layers: Sequence[str]) -> list[Run]:
    found = []
    for each in events:
        if each.device or each.end <= each.start:
            continue
        if each.name == _WAIT:
            found.append(Run(_span(each, "IteratorGetNext", DATA, "", ""), "", ""))
            continue
        named = _OPERATOR.match(each.name)
        if named is None:
            continue
        name, operator = named.groups()
        if operator in _TAKES:
            found.append(Run(_span(each, "IteratorGetNext", DATA, "", ""), "", ""))
            continue
        given = str(each.details.get("shape") or each.details.get("tensor_shapes") or "")
        part = graphs.part(name) or GRAPH
        found.append(Run(_span(each, operator, part, layer_of(name, layers), given), name, given))
    return found


def _span(event: Event, operator: str, part: str, layer: str, given: str) -> Span:
    return Span(event.start, event.end, event.thread, operator, part, layer, given)
