"""Keras on TensorFlow: the program's own graphs write the step log; calls of `tf.function`s come back.

A step inside a `tf.function` runs no Python, and 32 of them may run in one call (`steps_per_execution`). So what a step
was like is written down by operations that are traced with it, into a variable of whole numbers, and read from there
when a call has returned. The same operations serve steps that run eagerly. They work under XLA, too.

Steps are told (`step_ends`) when the outermost call that made them has returned, all at once; then the program stands
`between_steps`. Eager steps are told one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.models.model import Model
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from overdrive.seams.hub import Seams
from overdrive.seams.keras import answers, datasets, parts, predicting
from overdrive.seams.keras.internals import copy_of_function, plain_eager
from overdrive.seams.keras.marks import SCOPE, TRAINS, WRITES
from overdrive.seams.keras.parts import Part, always, applications, evaluations
from overdrive.seams.keras.step_log import CAPACITY, OPTIMIZER, Application, StepLog
from overdrive.seams.keras.steps import MOST_NOTED, StepNotes, tell, wanted
from overdrive.seams.patch import Patches

_MOST_EAGER = 1024  # rows of eager steps that stay on their device


def make_step_log() -> StepLog:
    return GraphStepLog()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers = datasets.enter(hub, patches)
    parts.enter(hub, patches, _parts())
    removers += predicting.enter(hub, patches)
    if wanted(hub):
        _GraphWatch(hub).enter(patches)
    removers += answers.enter(hub, patches, TensorFlowTrainer, plain_eager)  # after the watch: outermost
    return removers


def _parts() -> list[Part]:
    return [
        *applications(always("optimizer")),
        *evaluations(),
        (tf.GradientTape, "gradient", always("backward")),
        (OwnedIterator, "__next__", always("data")),
        (Model, "__call__", _part_of_model),
        (polymorphic_function.Function, "__call__", _part_of_function),
    ]


def _part_of_model(*_: Any, **given: Any) -> str:
    if not tf.executing_eagerly():
        return ""  # what is traced and no other part is forward
    return "evaluation" if given.get("training") is False else "forward"


def _part_of_function(function: Any, *_: Any, **__: Any) -> str:
    return "graph" if tf.executing_eagerly() and getattr(function, TRAINS, False) else ""


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
        losses = [tf.reduce_mean(tf.cast(loss, tf.float64)) for loss in application.losses]
        total = tf.add_n(losses) if losses else tf.constant(0.0, tf.float64)
        row = [
            tf.constant(place, tf.int64),
            tf.constant(len(losses), tf.int64),
            bits(total / max(1, len(losses))),
            tf.cast(_leading_size(application.inputs), tf.int64),
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
            with tf.init_scope():  # out of the graph that is being traced
                self._variable = tf.Variable(np.zeros((CAPACITY, self.width), np.int64), trainable=False)
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False)


class _GraphWatch(StepNotes):
    step_log: GraphStepLog

    def __init__(self, hub: Seams) -> None:
        super().__init__(hub)
        self._unwatched: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by function: the same without our rows

    def enter(self, patches: Patches) -> None:
        super().enter(patches)
        patches.replace(tf.GradientTape, "gradient", self._differentiating(tf.GradientTape.gradient))
        function = polymorphic_function.Function
        patches.replace(function, "__call__", self._running(function.__call__))
        patches.replace(function, "get_concrete_function", self._taking(function.get_concrete_function))

    def graph(self) -> Any:
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def reaches(self, graph: Any, other: Any) -> bool:
        """Those of its own, and of those it lies in."""
        if other is None:
            return graph is None
        while graph is not None:
            if graph is other:
                return True
            graph = getattr(graph, "outer_graph", None)
        return False

    def is_tensor(self, thing: Any) -> bool:
        return bool(tf.is_tensor(thing))

    def flat(self, thing: Any) -> list[Any]:
        return list(tf.nest.flatten(thing))

    def looks_away(self) -> bool:
        """A layer that is called again in the backward pass (`keras.remat`) has gradients of its own taken there; and
        what the program takes away is its own alone."""
        return getattr(self.here, "differentiating", False) or getattr(self.here, "taking", False)

    def write(self, application: Application) -> None:
        with tf.name_scope(SCOPE):
            self.step_log.write(application)
        if self.graph() is None:
            tell(self.hub, [application.optimizer])
            return
        self._mark(TRAINS, WRITES)

    def _note_evaluation(self, args: Any, result: Any) -> None:
        super()._note_evaluation(args, result)
        if self.step_log.columns:
            self._mark(WRITES)

    def _mark(self, *names: str) -> None:
        for function in getattr(self.here, "running", ()):
            for name in names:
                setattr(function, name, True)

    def _hand_on(self, function: Any) -> None:
        """To those that call it, which need not trace it again: it was called before, by itself."""
        self._mark(*(name for name in (TRAINS, WRITES) if getattr(function, name, False)))

    def _differentiating(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(differentiate)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            if self.looks_away():
                return differentiate(tape, target, sources, *args, **kwargs)
            self.here.differentiating = True
            try:
                found = differentiate(tape, target, sources, *args, **kwargs)
            finally:
                self.here.differentiating = False
            self.heard(lambda: self._note_loss(target, sources))
            return found

        return gradient

    def _note_loss(self, target: Any, sources: Any) -> None:
        if not any(hasattr(each, "trainable") for each in tf.nest.flatten(sources)):
            return  # with respect to an input: a penalty on it, say
        here = self.graph()
        before = self.losses[-MOST_NOTED:] if here is None else self._within(here, self.losses)
        noted = [(here, tf.convert_to_tensor(self.unscaled(each))) for each in tf.nest.flatten(target)]
        self.losses = [*before, *noted]

    def _running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        here = self.here

        @functools.wraps(run)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(here, "taking", False) and getattr(function, WRITES, False):
                return run(self._as_written(function), *args, **kwargs)
            running = here.__dict__.setdefault("running", [])
            outermost = not running and tf.executing_eagerly()
            running.append(function)
            try:
                result = run(function, *args, **kwargs)
            finally:
                running.pop()
                self._hand_on(function)
            if outermost:
                self.heard(lambda: self._returned(getattr(function, TRAINS, False)))
            return result

        return __call__

    def _taking(self, take: Callable[..., Any]) -> Callable[..., Any]:
        here = self.here

        @functools.wraps(take)
        def get_concrete_function(function: Any, *args: Any, **kwargs: Any) -> Any:
            """The graph as the program wrote it: a variable of ours that it writes to would belong to nothing that is
            saved with it, and TensorFlow refuses to save such a graph."""
            if not tf.executing_eagerly() or getattr(here, "taking", False):
                found = take(function, *args, **kwargs)
                self._hand_on(function)
                return found
            running = here.__dict__.setdefault("running", [])
            running.append(function)
            try:
                found = take(function, *args, **kwargs)
            finally:
                running.pop()
            if not getattr(function, WRITES, False):
                return found
            here.taking = True
            try:
                return take(self._as_written(function), *args, **kwargs)
            finally:
                here.taking = False

        return get_concrete_function

    def _as_written(self, function: Any) -> Any:
        if function not in self._unwatched:
            self._unwatched[function] = copy_of_function(function)
        return self._unwatched[function]

    def _returned(self, trains: bool) -> None:
        self.hub.at_work.publish()
        tell(self.hub, self.step_log.news() if trains else [])


def value_of(variable: Any) -> Any:
    """The tensor of a variable of Keras or of TensorFlow."""
    value = getattr(variable, "value", variable)
    return tf.convert_to_tensor(value() if callable(value) else value)


def bits(number: Any) -> Any:
    """A number of fp64 as the whole number of the same bits."""
    return tf.bitcast(number, tf.int64)


def _leading_size(inputs: Sequence[Any]) -> Any:
    for _, _, tensors in reversed(inputs):  # the call that the loss was made of, as a rule
        for tensor in tensors:
            if len(tensor.shape) if isinstance(tensor, np.ndarray) else tensor.shape.rank != 0:
                return _rows(tensor)
    return 0


def _rows(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows()
    return tensor.dense_shape[0] if isinstance(tensor, tf.SparseTensor) else tf.shape(tensor)[0]
