"""The step log of Keras on TensorFlow, which graphs write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from overdrive.seams.keras.marks import SCOPE
from overdrive.seams.keras.step_log import CAPACITY, OPTIMIZER, Application, StepLog

_MOST_EAGER = 1024  # rows of eager steps that stay on their device


class GraphStepLog(StepLog):
    """Graphs write it."""

    def __init__(self) -> None:
        super().__init__()
        self._variable: Any = None
        self._count: Any = None  # rows that graphs have written
        self._read = 0  # ... of which so many were read
        self._told = 0  # ... and so many reported by `news`
        self._eager: list[Any] = []  # rows of steps that ran eagerly, still on their device

    def write(self, application: Application) -> None:
        """Add the operations that write its row; `optimizer` has just been applied."""
        optimizer = application.optimizer
        place = self.place(optimizer)
        # An operation more that reads a loss has TensorFlow's optimizer of graphs add it up in another order where the
        # program adds it to something: a metric of its own then differs in its last digit.
        noted = application.losses if self.losses else ()
        losses = [tf.reduce_mean(tf.cast(loss, tf.float64)) for loss in noted]
        samples = application.samples
        total = tf.add_n(losses) if losses else tf.constant(0.0, tf.float64)
        row = [
            tf.constant(place, tf.int64),
            tf.constant(len(losses), tf.int64),
            bits(total / max(1, len(losses))),
            tf.cast(leading_size(application.inputs) if samples is None else samples, tf.int64),
            bits(tf.cast(application.rate, tf.float64)),
            *self.filled(application),
        ]
        if tf.executing_eagerly():
            if len(self._eager) >= _MOST_EAGER or self._count is not None:
                self.read()
            self._eager.append(tf.stack(row))
            return
        self._make()
        slices = tf.IndexedSlices(tf.stack(row)[tf.newaxis], (self._count % CAPACITY)[tf.newaxis])
        written = self._variable.scatter_update(slices)
        # Where data are out a step begins all the same, and what needs no batch is done: to count must not be of that.
        with tf.control_dependencies([written]):
            self._count.assign_add(1)

    def news(self) -> list[Any]:
        """The optimizers of the rows that graphs have written since the last time; waits for them."""
        if self._count is None:
            return []
        count = int(self._count.numpy())
        new, self._told = count - self._told, count
        if self.known == 1:
            if count - self._read > CAPACITY // 2:
                self.read()
            return [self.optimizer(0)] * new
        self.read()
        return [self.optimizer(int(row[OPTIMIZER])) for row in self.rows[len(self.rows) - min(new, len(self.rows)) :]]

    def read(self) -> None:
        new = [row.numpy() for row in self._eager]
        self._eager.clear()
        count = int(self._count.numpy()) if self._count is not None else 0
        if count > self._read:
            kept = self._variable.numpy()
            for place in range(self._read, count):
                lost = count - place > CAPACITY
                new.append(np.zeros(self.width, np.int64) if lost else kept[place % CAPACITY].copy())
            self._read = count
        self.take(new)

    def _make(self) -> None:
        if self._variable is None:
            self._variable = variable_of_ours(np.zeros((CAPACITY, self.width), np.int64), "rows")
            self._count = variable_of_ours(np.int64(0), "count")


def variable_of_ours(value: Any, name: str) -> Any:
    """One that belongs to no graph, made while one may be traced.

    No `tf.Variable`, which would be the traced function's own: TensorFlow then traces that once more, or, where it was
    called before, refuses ("Creating variables on a non-first call").
    """
    with tf.init_scope():
        return ResourceVariable(value, trainable=False, name=f"{SCOPE}_{name}")


def bits(number: Any) -> Any:
    """A number of fp64 as the whole number of the same bits."""
    return tf.bitcast(number, tf.int64)


def leading_size(inputs: Sequence[Any]) -> Any:
    for *_, tensors in reversed(inputs):  # the call that the loss was made of, as a rule
        for tensor in tensors:
            if len(tensor.shape) if isinstance(tensor, np.ndarray) else tensor.shape.rank != 0:
                return _rows(tensor)
    return 0


def _rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows()
    return tensor.dense_shape[0] if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)[0]
