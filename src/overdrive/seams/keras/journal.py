"""A journal of training steps that the program's own graphs write, one row for each application of an optimizer.

A step inside a `tf.function` runs no Python, and 32 of them may run in one call (`steps_per_execution`). So what a step
was like is written down by operations that are traced with it, into a variable of whole numbers, and read from there
when a call has returned. The same operations serve steps that run eagerly. They work under XLA, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from overdrive.clock import Clock
from overdrive.seams.hub import Seams

# Rows that are kept in the graph's variable: a call that makes more steps than this loses the first of them.
CAPACITY = 8192
OPTIMIZER, LOSSES, LOSS, SAMPLES, RATE = range(5)
_MOST_EAGER = 1024  # rows of eager steps that stay on their device
_OWN = 5  # columns of every row: those above


@dataclass
class Application:
    """One application of an optimizer, as it is traced or as it runs."""

    optimizer: Any
    gradients: Sequence[Any]
    variables: Sequence[Any]
    losses: Sequence[Any] = ()
    inputs: Sequence[Any] = ()  # what models were given since the last one: (model, training, tensors) each
    labels: Sequence[Any] = ()  # what loss objects were given besides the models' answers


@dataclass(frozen=True)
class Columns:
    """More columns for each row. Both are called while the step is traced."""

    width: int
    fill: Callable[[Application], Sequence[Any]]  # after the application: scalars of int64
    before: Callable[[Application], None] | None = None
    evaluated: Callable[[Sequence[Any], Sequence[Any]], None] | None = None  # (inputs, answers) of a model's call


class Journal:
    """`keep`: whether all rows stay in `rows` when they have been read, or only those of the last steps."""

    def __init__(self) -> None:
        self.keep = False
        self.samples = 0  # of all rows read so far
        self.optimizers: list[Any] = []
        self.rows: list[np.ndarray[Any, Any]] = []  # read so far, in order
        self._columns: list[Columns] = []
        self._variable: Any = None
        self._count: Any = None  # rows that graphs have written
        self._read = 0  # ... of which so many were read
        self._told = 0  # ... and so many reported by `news`
        self._eager: list[Any] = []  # rows of steps that ran eagerly, still on their device

    def add_columns(self, columns: Columns) -> int:
        """Returns the index of the first. Call it before the first step."""
        first = self.width
        self._columns.append(columns)
        return first

    @property
    def width(self) -> int:
        return _OWN + sum(each.width for each in self._columns)

    def before(self, application: Application) -> None:
        for each in self._columns:
            if each.before:
                each.before(application)

    def evaluated(self, given: Sequence[Any], heard: Sequence[Any]) -> None:
        """A model was called to evaluate."""
        for each in self._columns:
            if each.evaluated:
                each.evaluated(given, heard)

    def write(self, application: Application) -> None:
        """Add the operations that write its row; `optimizer` has just been applied."""
        optimizer = application.optimizer
        if all(known is not optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
        losses = [tf.reduce_mean(tf.cast(loss, tf.float64)) for loss in application.losses]
        total = tf.add_n(losses) if losses else tf.constant(0.0, tf.float64)
        row = [
            tf.constant(next(i for i, known in enumerate(self.optimizers) if known is optimizer), tf.int64),
            tf.constant(len(losses), tf.int64),
            bits(total / max(1, len(losses))),
            tf.cast(_leading_size(application.inputs), tf.int64),
            bits(tf.cast(unwrapped(optimizer)._get_current_learning_rate(), tf.float64)),
        ]
        for each in self._columns:
            row += each.fill(application)
        if tf.executing_eagerly():
            if len(self._eager) >= _MOST_EAGER or self._count is not None:
                self.read()
            self._eager.append(tf.stack(row))
            return
        self._make()
        self._variable.scatter_update(tf.IndexedSlices(tf.stack(row)[tf.newaxis], (self._count % CAPACITY)[tf.newaxis]))
        self._count.assign_add(1)

    def news(self) -> list[Any]:
        """The optimizers of the rows that graphs have written since the last time; waits for them."""
        if self._count is None:
            return []
        count = int(self._count.numpy())
        new, self._told = count - self._told, count
        if len(self.optimizers) == 1:
            if count - self._read > CAPACITY // 2:
                self.read()
            return self.optimizers * new
        self.read()
        return [self.optimizers[row[OPTIMIZER]] for row in self.rows[len(self.rows) - min(new, len(self.rows)) :]]

    def by_step(self) -> list[list[Any]]:
        """Its rows by training step: the last of each is of the leading optimizer (see `Clock`)."""
        self.read()
        clock = Clock()
        steps: list[list[Any]] = []
        pending: list[Any] = []
        for row in self.rows:
            pending.append(row)
            if clock.tick(self.optimizers[int(row[OPTIMIZER])]):
                steps.append(pending)
                pending = []
        return steps

    def read(self) -> None:
        """Bring all rows written so far into `rows`."""
        new = [row.numpy() for row in self._eager]
        self._eager.clear()
        count = int(self._count.numpy()) if self._count is not None else 0
        if count > self._read:
            kept = self._variable.numpy()
            for place in range(self._read, count):
                lost = count - place > CAPACITY
                new.append(np.zeros(self.width, np.int64) if lost else kept[place % CAPACITY].copy())
            self._read = count
        self.samples += sum(int(row[SAMPLES]) for row in new)
        self.rows += new
        if not self.keep:
            del self.rows[:-CAPACITY]

    def _make(self) -> None:
        if self._variable is None:
            with tf.init_scope():  # out of the graph that is being traced
                self._variable = tf.Variable(np.zeros((CAPACITY, self.width), np.int64), trainable=False)
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer itself, where one that scales losses is around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def value_of(variable: Any) -> Any:
    """The tensor of a variable of Keras or of TensorFlow."""
    value = getattr(variable, "value", variable)
    return tf.convert_to_tensor(value() if callable(value) else value)


def path_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


_journals: weakref.WeakKeyDictionary[Seams, Journal] = weakref.WeakKeyDictionary()


def journal_of(hub: Seams) -> Journal:
    """The one journal of a session."""
    if hub not in _journals:
        _journals[hub] = Journal()
    return _journals[hub]


def bits(number: Any) -> Any:
    """A number of fp64 as the whole number of the same bits."""
    return tf.bitcast(number, tf.int64)


def number(value: int) -> float:
    """The way back, outside the graph."""
    return float(np.int64(value).view(np.float64))


def _leading_size(inputs: Sequence[Any]) -> Any:
    for _, _, tensors in reversed(inputs):  # the call that the loss was made of, as a rule
        for tensor in tensors:
            if tensor.shape.rank != 0:
                return tf.shape(tensor)[0]
    return 0
