"""OpenVINO in the place of a model's graph, and whether the weights that it was built from are still the model's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from overdrive.engines import openvino


class HeldWeights:
    """What a model's variables hold, told by the memory that they hold it in.

    While it is held here too, TensorFlow never writes into that memory: a variable that is assigned to has another.
    """

    def __init__(self, model: Any) -> None:
        import tensorflow as tf

        variables = [each.value for each in model.variables]
        self._read = tf.function(lambda: [each.read_value() for each in variables], autograph=False)
        self._tensors = self._read()
        self._places = _places(self._tensors)

    def same(self) -> bool:
        """Takes some microseconds for each variable."""
        return _places(self._read()) == self._places


def _places(tensors: Any) -> list[int]:
    return [np.asarray(memoryview(each)).__array_interface__["data"][0] for each in tensors]


def engine_of(model: Any, args: Any, kwargs: Any, result: Any) -> Callable[[Any], Any]:
    """What answers such calls, given their arguments. `result`: of one of them, for its structure."""
    import keras
    import tensorflow as tf

    given = keras.tree.flatten(args)
    names = [f"input_{number}" for number in range(len(given))]
    specs = [tf.TensorSpec(each.shape, each.dtype, name) for each, name in zip(given, names, strict=True)]

    def call_model(*flat: Any) -> Any:
        return keras.tree.flatten(model(*keras.tree.pack_sequence_as(args, list(flat)), **kwargs))

    function = tf.function(call_model, autograph=False).get_concrete_function(*specs)
    threads = tf.config.threading.get_intra_op_parallelism_threads()  # 0: all, as with OpenVINO
    answer = openvino.OpenVino().engine(openvino.of_function(function, names), threads)
    alone = threading.Lock()  # an engine's memory is that of one call at a time

    def run(args: Any) -> Any:
        with alone:
            made = answer([np.ascontiguousarray(each) for each in keras.tree.flatten(args)])
        return keras.tree.pack_sequence_as(result, [tf.convert_to_tensor(each) for each in made])

    return run
