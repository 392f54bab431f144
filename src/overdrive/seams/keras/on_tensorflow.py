"""Keras on TensorFlow: the program's own graphs write the step log; calls of `tf.function`s come back.

A step inside a `tf.function` runs no Python, and 32 of them may run in one call (`steps_per_execution`). So what a step
was like is written down by operations that are traced with it, into a variable of whole numbers, and read from there
when a call has returned. The same operations serve steps that run eagerly. They work under XLA, too.

Steps are told (`step_ends`) when the outermost call that made them has returned, all at once; then the program stands
`between_steps`. Eager steps are told one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.models.model import Model
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from overdrive.seams.hub import Seams
from overdrive.seams.keras import answers, datasets, executions, parts, predicting
from overdrive.seams.keras.functions import parts_of
from overdrive.seams.keras.internals import copy_of_function, plain_eager
from overdrive.seams.keras.marks import SCOPE, TRAINS, WRITES
from overdrive.seams.keras.parts import Part, always, applications, evaluations
from overdrive.seams.keras.step_log import Application, StepLog
from overdrive.seams.keras.step_log_on_tensorflow import GraphStepLog, leading_size
from overdrive.seams.keras.steps import MOST_NOTED, StepNotes, tell, wanted
from overdrive.seams.keras.told_frames import without_own_frames
from overdrive.seams.patch import Patches


def make_step_log() -> StepLog:
    return GraphStepLog()


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    removers = datasets.enter(hub, patches)
    parts.enter(hub, patches, _parts())
    removers += predicting.enter(hub, patches)
    removers += executions.enter(hub, patches)
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


class _GraphWatch(StepNotes):
    step_log: GraphStepLog

    def __init__(self, hub: Seams) -> None:
        super().__init__(hub)
        self._unwatched: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # by function: the same without our rows

    def enter(self, patches: Patches) -> None:
        super().enter(patches)
        make = TensorFlowTrainer._make_function
        patches.replace(TensorFlowTrainer, "_make_function", self._making(make))
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

    def _making(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """A step's batch is known there, whatever its model then calls, and however often."""

        @functools.wraps(make)
        def _make_function(model: Any, step_function: Any) -> Any:
            if step_function != model.train_step:
                return make(model, step_function)

            @functools.wraps(step_function)
            def step(data: Any) -> Any:
                self.heard(lambda: setattr(self.here, "batch", (self.graph(), leading_size([parts_of(data)[:1]]))))
                try:
                    return step_function(data)
                finally:
                    self.here.batch = None

            return make(model, step)

        return _make_function

    def write(self, application: Application) -> None:
        graph, samples = getattr(self.here, "batch", None) or (None, None)
        if samples is not None and self.reaches(self.graph(), graph):
            application.samples = samples
            self.here.batch = (graph, 0)  # for those that follow in this step
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
        self.hub.gradients_taped.publish()
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
                with without_own_frames() if outermost else nullcontext():
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
