"""The clock: optimizers applied, in graphs and eagerly; losses sent backward; calls of `tf.function`s come back.

`Optimizer.apply` and `GradientTape.gradient` are Python only while a step is traced. What they are given goes into the
journal's operations. Steps are told (`step_ends`) when the outermost call that made them has returned, all at once;
then the program stands `between_steps`. Eager steps are told one by one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.losses.loss import Loss
from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from overdrive.seams.hub import OBSERVER, Seams, reason_of
from overdrive.seams.keras.journal import Application, journal_of
from overdrive.seams.keras.marks import SCOPE, TRAINS
from overdrive.seams.patch import Patches


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.step_ends.subscribers and not hub.between_steps.subscribers:
        return []
    watch = _Watch(hub)
    for holder in (BaseOptimizer, LossScaleOptimizer):
        patches.replace(holder, "apply", watch.applying(holder.apply))
        patches.replace(holder, "scale_loss", watch.scaling(holder.scale_loss))
    patches.replace(Model, "__call__", watch.calling(Model.__call__))
    patches.replace(Loss, "__call__", watch.judging(Loss.__call__))
    patches.replace(tf.GradientTape, "gradient", watch.differentiating(tf.GradientTape.gradient))
    function = polymorphic_function.Function
    patches.replace(function, "__call__", watch.running(function.__call__))
    return []


class _Watch:
    """What is noted between two applications of an optimizer, each with the graph that it belongs to."""

    def __init__(self, hub: Seams) -> None:
        self._hub = hub
        self._journal = journal_of(hub)
        self._losses: list[tuple[Any, Any]] = []  # (graph, loss); None for the graph of what runs eagerly
        self._inputs: list[tuple[Any, Any]] = []  # (graph, (model, training, tensors))
        self._labels: list[tuple[Any, Any]] = []  # (graph, tensor)
        self._scaled: list[tuple[Any, Any]] = []  # (scaled loss, loss)
        self._here = threading.local()

    def _heard(self, act: Callable[[], None]) -> None:
        """Whatever goes wrong in our own looking on must not end the program."""
        if not self._hub.step_ends.subscribers and not self._hub.between_steps.subscribers:
            return
        try:
            act()
        except Exception as error:
            self._hub.leave_out(OBSERVER, f"Keras's steps could not be followed ({reason_of(error)})")

    def applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if getattr(self._here, "applying", False):  # by an optimizer that wraps another
                return apply(optimizer, grads, trainable_variables)
            self._here.applying = True
            try:
                gradients = list(grads)
                variables = None if trainable_variables is None else list(trainable_variables)
                application = Application(optimizer, gradients, variables or optimizer._trainable_variables)
                self._heard(lambda: self._begin(application))
                result = apply(optimizer, gradients, variables)
                self._heard(lambda: self._end(application))
                return result
            finally:
                self._here.applying = False

        return applied

    def _begin(self, application: Application) -> None:
        here = _graph()
        application.losses = [loss for graph, loss in self._losses if _reaches(here, graph)]
        application.inputs = [given for graph, given in self._inputs if _reaches(here, graph)]
        application.labels = [label for graph, label in self._labels if _reaches(here, graph)]
        self._losses.clear()
        self._inputs.clear()
        self._labels.clear()
        self._scaled.clear()
        self._journal.before(application)

    def _end(self, application: Application) -> None:
        with tf.name_scope(SCOPE):
            self._journal.write(application)
        if _graph() is None:
            self._hub.step_ends.publish(application.optimizer)
            self._hub.between_steps.publish()
            return
        for function in getattr(self._here, "running", ()):
            setattr(function, TRAINS, True)

    def scaling(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(scale)
        def scale_loss(optimizer: Any, loss: Any) -> Any:
            scaled = scale(optimizer, loss)
            if scaled is not loss:
                self._scaled.append((scaled, loss))
            return scaled

        return scale_loss

    def differentiating(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(differentiate)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            found = differentiate(tape, target, sources, *args, **kwargs)
            self._heard(lambda: self._note_loss(target, sources))
            return found

        return gradient

    def _note_loss(self, target: Any, sources: Any) -> None:
        if not any(hasattr(each, "trainable") for each in tf.nest.flatten(sources)):
            return  # with respect to an input: a penalty on it, say
        for each in tf.nest.flatten(target):
            loss = next((loss for scaled, loss in self._scaled if scaled is each), each)
            self._losses.append((_graph(), tf.convert_to_tensor(loss)))

    def calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "model", False):
                return call(model, *args, **kwargs)
            self._here.model = True
            try:
                self._heard(lambda: self._note_inputs(model, args, kwargs))
                result = call(model, *args, **kwargs)
                if kwargs.get("training") is False:
                    self._heard(lambda: self._note_evaluation(args, result))
                return result
            finally:
                self._here.model = False

        return __call__

    def _note_inputs(self, model: Any, args: Any, kwargs: Any) -> None:
        here = _graph()
        given = {key: value for key, value in kwargs.items() if key not in ("training", "mask")}
        tensors = [each for each in tf.nest.flatten([args, given]) if tf.is_tensor(each)]
        if not tensors:
            return  # a symbolic call, that builds the model
        if here is None:  # eager: only the last one, evaluation between steps would pile up
            self._inputs = [each for each in self._inputs if each[0] is not None]
        self._inputs.append((here, (model, kwargs.get("training"), tensors)))

    def _note_evaluation(self, args: Any, result: Any) -> None:
        given, heard = ([each for each in tf.nest.flatten(thing) if tf.is_tensor(each)] for thing in (args, result))
        if given:
            self._journal.evaluated(given, heard)

    def judging(self, judge: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(judge)
        def __call__(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if getattr(self._here, "loss", False):
                return judge(loss, y_true, y_pred, sample_weight)
            self._here.loss = True
            try:
                self._heard(lambda: self._note_labels([y_true, sample_weight]))
                return judge(loss, y_true, y_pred, sample_weight)
            finally:
                self._here.loss = False

        return __call__

    def _note_labels(self, given: Any) -> None:
        here = _graph()
        if here is None:  # eager: evaluation between steps would pile up
            self._labels = [each for each in self._labels if each[0] is not None]
        self._labels += [(here, each) for each in tf.nest.flatten(given) if tf.is_tensor(each)]

    def running(self, run: Callable[..., Any]) -> Callable[..., Any]:
        here = self._here

        @functools.wraps(run)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            running = here.__dict__.setdefault("running", [])
            outermost = not running and tf.executing_eagerly()
            running.append(function)
            try:
                result = run(function, *args, **kwargs)
            finally:
                running.pop()
            if outermost:
                self._heard(lambda: self._returned(getattr(function, TRAINS, False)))
            return result

        return __call__

    def _returned(self, trains: bool) -> None:
        self._hub.at_work.publish()
        news = self._journal.news() if trains else []
        for optimizer in news:
            self._hub.step_ends.publish(optimizer)
        if news:
            self._hub.between_steps.publish()


def _graph() -> Any:
    """The graph that is being traced, or None."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _reaches(graph: Any, other: Any) -> bool:
    """Whether tensors of the graph `other` can be used in `graph`: its own, and of those it lies in."""
    if other is None:
        return graph is None
    while graph is not None:
        if graph is other:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
