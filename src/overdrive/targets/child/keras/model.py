"""A Keras model as a function of arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overdrive.engines.keras.given import Given
from overdrive.engines.runtime import said_nowhere
from overdrive.seams.keras.answers import PREDICT
from overdrive.seams.keras.fp64 import layers_in_double
from overdrive.targets.child import dimensions
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.child.keras.graph import Graph
from overdrive.targets.child.subject import Names
from overdrive.targets.fpga.front_end import FrontEnd


class KerasModel:
    """See `subject.Model`. Of `predict` it is what the model's predict function does with one batch."""

    framework = "keras"

    def __init__(self, model: Any, form: Given, calls: Sequence[Arrays]) -> None:
        """`form`: a call of the form that is exported; `calls`: the recorded ones."""
        self._model = model
        self._form = form
        self._calls = calls
        self._call = form.call_of(model)

    def answers(self, given: Arrays) -> Arrays:
        with said_nowhere():
            return [_array(each) for each in self._call(*map(tf.convert_to_tensor, given))]

    def exact(self, given: Arrays) -> Arrays:
        widened = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in given]
        with layers_in_double(self._model):
            return self.answers(widened)

    def own_call(self, given: Arrays) -> Callable[[], Any]:
        args = self._form.arguments([tf.convert_to_tensor(each) for each in given])
        if self._form.kind == PREDICT:
            return lambda: self._model.predict_on_batch(*args)
        return lambda: self._model(*args, **self._form.kwargs)

    def write(self, target: str, example: Arrays, marks: dimensions.Marks, names: Names, folder: Path) -> Graph:
        made = Graph(target, self._call, self._calls, marks, names)
        made.write(folder)
        return made

    def digest(self) -> str:
        digest = hashlib.sha256()
        for each in self._model.variables:
            array = np.ascontiguousarray(keras.ops.convert_to_numpy(each))
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def front_end(self) -> FrontEnd:
        from overdrive.targets.fpga.of_keras import KerasFrontEnd

        return KerasFrontEnd(self._model)


def _array(tensor: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(tensor))
