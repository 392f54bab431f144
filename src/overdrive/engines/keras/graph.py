"""Calls of a Keras model made by a graph of TensorFlow's, which reads the model's own variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from overdrive.engines.keras.given import Given, signatures
from overdrive.engines.keras.model import Agrees, Made
from overdrive.engines.runtime import Array
from overdrive.seams.keras.answers import CALL


def traced(model: Any, given: Given, xla: bool = False) -> Any:
    """The concrete function of such a call; its inputs and outputs are the leaves, in order."""
    # Of a function for each signature TensorFlow would warn that it is traced often.
    function = tf.function(given.call_of(model), jit_compile=xla, autograph=False)
    return function.get_concrete_function(*signatures(given.leaves))


def casts_fractions(function: Any) -> bool:
    """Whether a graph makes whole numbers of fractions, as a layer `Embedding` does of what it is given."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return any(
        node.op == "Cast"
        and tf.as_dtype(node.attr["SrcT"].type).is_floating
        and tf.as_dtype(node.attr["DstT"].type).is_integer
        for node in nodes
    )


class Graphs:
    """Makes them."""

    kinds: Sequence[str] = (CALL,)
    calibrating = 0
    narrow = False
    one_at_a_time = False

    def __init__(self, xla: bool) -> None:
        self._xla = xla
        self.as_tensorflow = not xla  # XLA takes the last row of a table for any that is not in it

    def takes(self, given: Given) -> bool:
        return True

    def made(self, model: Any, given: Given, examples: Sequence[Sequence[Array]], agrees: Agrees) -> Made | None:
        graph = _Graph(traced(model, given, self._xla))
        return graph if agrees(graph) else None


class _Graph:
    def __init__(self, function: Any) -> None:
        self._function = function
        self.places_of_fractions = casts_fractions(function)

    def run(self, given: Given) -> list[Any]:
        return list(self._function(*given.tensors()))

    def changed(self) -> bool:
        return False
