"""What each operation of the program's graphs is for, noted while they are traced.

Operations made while gradients are asked for are backward, those made while an optimizer is applied are its own, and
all others of a graph in which one is applied are forward. A recording names an operation as its graph does, with the
names of what it was moved out of before it, and those of the optimizations that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from overdrive.seams.hub import Seams
from overdrive.seams.keras.marks import SCOPE
from overdrive.worker.profiling.timeline import WATCHING

_NOTED = ("backward", "optimizer")


class Graphs:
    """An observer. `parts` and `operations` by name, once `read` has been called."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._graphs: dict[int, Any] = {}
        self._operations: dict[str, Any] = {}

    def __call__(self, seams: Seams) -> None:
        seams.part_run.subscribe(self._run)

    def _run(self, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or kind not in _NOTED:
            return call(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        try:
            return call(*args, **kwargs)
        finally:
            self._parts.update((each.name, kind) for each in graph.get_operations()[before:])
            self._graphs[id(graph)] = graph

    def read(self) -> None:
        """Take in the graphs that have been traced so far."""
        for graph in list(self._graphs.values()):
            while graph is not None:
                for each in graph.get_operations():
                    self._operations.setdefault(each.name, each)
                graph = getattr(graph, "outer_graph", None)

    @property
    def known(self) -> bool:
        return bool(self._operations)

    def part(self, name: str) -> str:
        """ "" where no graph that trains has it."""
        if SCOPE in name.split("/"):
            return WATCHING
        found = self._found(name)
        return self._parts.get(found.name, "forward") if found is not None else ""

    def operation(self, name: str) -> Any:
        """The operation as it was traced, where it stands for itself; None where it does not."""
        return next((self._operations[each] for each in _endings(name) if each in self._operations), None)

    def _found(self, name: str) -> Any:
        """Itself, or what it was made of: an operation of a loop, of a called function."""
        for each in (*_endings(name), *_beginnings(name)):
            if each in self._operations:
                return self._operations[each]
        return None


def _endings(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


def _beginnings(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:stop]) for stop in range(len(parts) - 1, 0, -1))
