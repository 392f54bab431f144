"""The clock: optimizers applied, and what went into it: models called, losses judged and scaled.

What is common to the backends whose optimizers are called in Python, be it while a step is traced. Each backend's own
ways, and when its steps are told, are in `on_NAME`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras.src.losses.loss import Loss
from keras.src.models.model import Model
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

from overdrive.seams.hub import Seams
from overdrive.seams.keras.step_log import Application, rate_of, step_log_of, unwrapped
from overdrive.seams.patch import Patches
from overdrive.seams.points import OBSERVER, reason_of

MOST_NOTED = 64  # labels, and losses, of a program that applies no optimizer


def wanted(hub: Seams) -> bool:
    return bool(hub.step_ends.subscribers or hub.between_steps.subscribers)


def heard(hub: Seams, act: Callable[[], None]) -> None:
    """Whatever goes wrong in our own looking on must not end the program."""
    if not wanted(hub):
        return
    try:
        act()
    except Exception as error:
        hub.leave_out(OBSERVER, f"Keras's steps could not be followed ({reason_of(error)})")


def tell(hub: Seams, optimizers: Sequence[Any]) -> None:
    """So many steps were made, and the program stands still."""
    for optimizer in optimizers:
        hub.step_ends.publish(optimizer)
    if optimizers:
        hub.between_steps.publish()


class StepNotes:
    """What is noted between two applications of an optimizer, each with the graph that it belongs to."""

    def __init__(self, hub: Seams) -> None:
        self.hub = hub
        self.step_log = step_log_of(hub)
        self.losses: list[tuple[Any, Any]] = []  # (graph, loss); None for the graph of what runs eagerly
        self.inputs: list[tuple[Any, Any]] = []  # (graph, (model, training, tensors))
        self.labels: list[tuple[Any, Any]] = []  # (graph, tensor)
        self.scaled: list[tuple[Any, Any]] = []  # (scaled loss, loss)
        self.here = threading.local()

    def enter(self, patches: Patches) -> None:
        for holder in (BaseOptimizer, LossScaleOptimizer):
            patches.replace(holder, "apply", self._applying(holder.apply))
            patches.replace(holder, "scale_loss", self._scaling(holder.scale_loss))
        ask = BaseOptimizer._get_current_learning_rate
        patches.replace(BaseOptimizer, "_get_current_learning_rate", self._asking_rate(ask))
        patches.replace(Model, "__call__", self._calling(Model.__call__))
        patches.replace(Loss, "__call__", self._judging(Loss.__call__))

    # -- the backend's own ------------------------------------------------------------------------

    def graph(self) -> Any:
        """The graph that is being traced, or None."""
        return None

    def reaches(self, graph: Any, other: Any) -> bool:
        """Whether tensors of the graph `other` can be used in `graph`."""
        return graph is other

    def is_tensor(self, thing: Any) -> bool:
        raise NotImplementedError

    def flat(self, thing: Any) -> list[Any]:
        return list(keras.tree.flatten(thing))

    def looks_away(self) -> bool:
        """Whether nothing is to be noted now."""
        return False

    def write(self, application: Application) -> None:
        """The optimizer has just been applied."""
        raise NotImplementedError

    # -- what is patched --------------------------------------------------------------------------

    def heard(self, act: Callable[[], None]) -> None:
        heard(self.hub, act)

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self.looks_away() or getattr(self.here, "applying", False):  # by an optimizer that wraps another
                return apply(optimizer, grads, trainable_variables)
            self.here.applying = True
            try:
                gradients = list(grads)
                variables = None if trainable_variables is None else list(trainable_variables)
                application = Application(optimizer, gradients, variables or optimizer._trainable_variables)
                self.heard(lambda: self._begin(application))
                result = apply(optimizer, gradients, variables)
                self.heard(lambda: self._applied(application))
                return result
            finally:
                self.here.applying = False

        return applied

    def _begin(self, application: Application) -> None:
        self.gather(application)
        self.step_log.before(application)

    def _applied(self, application: Application) -> None:
        optimizer = unwrapped(application.optimizer)
        of, graph, rate = self.here.__dict__.pop("rate", (None, None, None))
        if of is optimizer and self.reaches(self.graph(), graph):
            application.rate = rate
        else:
            application.rate = rate_of(optimizer)
        self.write(application)

    def _asking_rate(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def _get_current_learning_rate(optimizer: Any) -> Any:
            """A function of the program's may give another one each time: what Keras was told is noted."""
            rate = ask(optimizer)
            if not self.looks_away() and getattr(self.here, "applying", False):
                self.here.rate = (optimizer, self.graph(), rate)
            return rate

        return _get_current_learning_rate

    def gather(self, application: Application) -> None:
        """All that was noted since the last one is its own."""
        here = self.graph()
        application.losses = [loss for graph, loss in self.losses if self.reaches(here, graph)]
        application.inputs = [given for graph, given in self.inputs if self.reaches(here, graph)]
        application.labels = [label for graph, label in self.labels if self.reaches(here, graph)]
        self.forget()

    def forget(self) -> None:
        for noted in (self.losses, self.inputs, self.labels, self.scaled):
            noted.clear()

    def _scaling(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(scale)
        def scale_loss(optimizer: Any, loss: Any) -> Any:
            scaled = scale(optimizer, loss)
            if scaled is not loss and not self.looks_away():
                self.scaled.append((scaled, loss))
            return scaled

        return scale_loss

    def unscaled(self, loss: Any) -> Any:
        return next((own for scaled, own in self.scaled if scaled is loss), loss)

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.looks_away() or getattr(self.here, "model", False):
                return call(model, *args, **kwargs)
            self.here.model = True
            try:
                self.heard(lambda: self._note_inputs(model, args, kwargs))
                result = call(model, *args, **kwargs)
                if kwargs.get("training") is False:
                    self.heard(lambda: self._note_evaluation(args, result))
                return result
            finally:
                self.here.model = False

        return __call__

    def _note_inputs(self, model: Any, args: Any, kwargs: Any) -> None:
        here = self.graph()
        given = {key: value for key, value in kwargs.items() if key not in ("training", "mask")}
        tensors = self._tensors_of([args, given])
        if not tensors:
            return  # a symbolic call, that builds the model
        self.inputs = [*self._within(here, self.inputs), (here, (model, kwargs.get("training"), tensors))]
        if here is None:
            self.labels.clear()  # of an evaluation, say; those of this call are still to come

    def _note_evaluation(self, args: Any, result: Any) -> None:
        given, answers = self._tensors_of(args), self._tensors_of(result)
        if given:
            self.step_log.evaluated(given, answers)

    def _judging(self, judge: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(judge)
        def __call__(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if self.looks_away() or getattr(self.here, "loss", False):
                return judge(loss, y_true, y_pred, sample_weight)
            self.here.loss = True
            try:
                self.heard(lambda: self._note_labels([y_true, sample_weight]))
                return judge(loss, y_true, y_pred, sample_weight)
            finally:
                self.here.loss = False

        return __call__

    def _note_labels(self, given: Any) -> None:
        here = self.graph()
        before = self.labels[-MOST_NOTED:] if here is None else self._within(here, self.labels)
        self.labels = [*before, *((here, each) for each in self._tensors_of(given))]

    def _tensors_of(self, thing: Any) -> list[Any]:
        """Arrays of NumPy that a program gives eagerly are its batch, too: Keras converts them within. Only columns
        look at what is in them; else they are left as they are, and take no memory of a device."""
        eager, looked_at = self.graph() is None, bool(self.step_log.columns)
        found = []
        for each in self.flat(thing):
            if self.is_tensor(each):
                found.append(each)
            elif eager and isinstance(each, np.ndarray) and each.dtype.kind in "biufc":
                found.append(keras.ops.convert_to_tensor(each) if looked_at else each)
        return found

    def _within(self, here: Any, noted: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Those that an application of an optimizer may still come for: of the graph `here`, and of those it lies in.

        Of what runs eagerly none: only the last call counts, evaluation between steps would pile up. A graph that is
        no more being traced would be kept alive, with its model, in a program that only evaluates.
        """
        return [each for each in noted if here is not None and self.reaches(here, each[0])]
