"""An engine that needs no library: TensorFlow carries out the graph, with the weights of when it was built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


class Frozen:
    """An `OfTensorFlow`. `spoilt`: what it does to each result, as a library with a defect would.

    Attributes:
        built: how many graphs were converted.
        loaded_again: how many models came from the disk.
        examples: what the last one was built from.
    """

    title = "the frozen graph"
    narrow = False
    versions = "1"

    def __init__(self, spoilt: Callable[[Any], Any] = lambda array: array, calibrating: int = 0) -> None:
        self.calibrating = calibrating
        self.examples: Sequence[Sequence[Any]] = ()
        self.built = self.loaded_again = 0
        self._spoilt = spoilt

    def missing(self) -> str | None:
        return None

    def converted(self, *_: Any) -> Any:
        raise NotImplementedError

    def of_tensorflow(self, function: Any, inputs: Sequence[str], examples: Sequence[Sequence[Any]]) -> Any:
        self.examples = examples
        self.built += 1
        return convert_variables_to_constants_v2(function).graph.as_graph_def()

    def places(self, model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[int], list[int]]:
        """The last ones first, as a library might have them."""
        self._names = [f"{each}:0" for each in inputs][::-1], list(outputs)[::-1]
        return [*range(len(inputs))][::-1], [*range(len(outputs))][::-1]

    def saved(self, model: Any) -> Mapping[str, bytes]:
        return {"graph": model.SerializeToString()}

    def loaded(self, parts: Mapping[str, bytes]) -> Any:
        self.loaded_again += 1
        return tf.compat.v1.GraphDef.FromString(parts["graph"])

    def engine(self, model: Any, threads: int) -> Any:
        names = self._names
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(model, name=""), [])
        function = wrapped.prune(*([wrapped.graph.get_tensor_by_name(name) for name in each] for each in names))

        def answer(given: Sequence[Any]) -> list[Any]:
            return [self._spoilt(each.numpy().copy()) for each in function(*(tf.constant(each) for each in given))]

        return answer
