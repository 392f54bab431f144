"""Seams of what TensorFlow computes for Keras as a whole, and of what Python takes out of its variables in between.

*execution called*: a train, test or predict function, as `fit`, `train_on_batch`, `evaluate` and `predict` call it. One
call may make several steps. *numbers read*: anything else that runs eagerly, looks at variables and tells of them.
Within one of these, and within what only hands numbers on (a file of weights), nothing more is told.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.layers.layer import Layer
from keras.src.models.model import Model
from keras.src.trainers.trainer import Trainer
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import resource_variable_ops

from overdrive.core.flag import FlagOfThread
from overdrive.seams.hub import Seams
from overdrive.seams.keras.answers import is_symbolic
from overdrive.seams.keras.internals import is_of_itself
from overdrive.seams.keras.marks import SCOPE
from overdrive.seams.keras.parts import always, applications
from overdrive.seams.patch import Patches

KINDS = ("train", "test", "predict")
OVER = object()  # in the place of what an execution returns: there were no more data
_MARK = "overdrive_executes"
_HANDS_ON = (
    (Model, ("save", "save_weights", "export")),
    (keras.saving, ("save_model", "save_weights")),
    (keras.models, ("save_model",)),
)


class Execution:
    """A call of such a function.

    Attributes:
        made: the function as Keras has made it.
        functions: TensorFlow's that were called in it.
    """

    def __init__(self, model: Any, kind: str, made: Callable[..., Any]) -> None:
        self.model, self.kind, self.made = model, kind, made
        self.functions: list[Any] = []

    @property
    def count(self) -> int:
        """Of batches that it takes."""
        return int(self.model.steps_per_execution)


def enter(hub: Seams, patches: Patches) -> list[Callable[[], None]]:
    if not hub.execution_called.wanted:
        return []
    return _Watch(hub).enter(patches)


class _Watch:
    def __init__(self, hub: Seams) -> None:
        self._hub = hub
        self._here = threading.local()
        self._silence = FlagOfThread()

    def enter(self, patches: Patches) -> list[Callable[[], None]]:
        for kind in KINDS:
            name = f"make_{kind}_function"
            patches.replace(TensorFlowTrainer, name, self._making(kind, getattr(TensorFlowTrainer, name)))
        variable, unread = resource_variable_ops.BaseResourceVariable, resource_variable_ops._UnreadVariable
        patches.replace(variable, "__init__", self._variable_made(variable.__init__))
        for holder, name in (
            *((variable, each) for each in ("_read_variable_op", "sparse_read", "gather_nd")),
            (unread, "_read_variable_op"),
        ):
            patches.replace(holder, name, self._reading("a variable", getattr(holder, name)))
        patches.replace(Trainer, "get_metrics_result", self._reading("its metrics", Trainer.get_metrics_result))
        patches.replace(Layer, "__call__", self._reading("a layer", Layer.__call__))
        function = polymorphic_function.Function
        patches.replace(function, "__call__", self._reading("a tf.function", self._noted(function.__call__)))
        for holder, names in _HANDS_ON:
            for name in names:
                if hasattr(holder, name):
                    patches.replace(holder, name, self._quiet(getattr(holder, name)))
        stopping = keras.callbacks.EarlyStopping
        for name in ("on_epoch_end", "on_train_end"):
            patches.replace(stopping, name, self._keeping(getattr(stopping, name)))
        for holder, name, _ in applications(always("")):
            patches.replace(holder, name, self._applying(getattr(holder, name)))
        for holder, name in ((tf.train.Checkpoint, "save"), (tf.train.Checkpoint, "write"), (tf.saved_model, "save")):
            patches.replace(holder, name, self._writing(getattr(holder, name)))
        return []

    # -- what is under way ------------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        here = self._here.__dict__
        return bool(self._silence) or here.get("execution") is not None or not tf.executing_eagerly()

    # -- what is patched --------------------------------------------------------------------------

    def _making(self, kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{kind}_function"

        @functools.wraps(make)
        def making(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = make(model, *args, **kwargs)
            made = getattr(model, name)
            if made is not None and not hasattr(made, _MARK):
                setattr(model, name, self._executing(model, kind, made))
            return result

        return making

    def _executing(self, model: Any, kind: str, made: Callable[..., Any]) -> Callable[..., Any]:
        here = self._here

        def execute(data: Any) -> Any:
            if getattr(here, "execution", None) is not None or not tf.executing_eagerly():
                return made(data)
            execution = Execution(model, kind, made)

            def call(data: Any) -> Any:
                here.execution = execution
                try:
                    return made(data)
                except (StopIteration, tf.errors.OutOfRangeError):
                    return OVER
                finally:
                    here.execution = None

            result = self._hub.execution_called.run(execution, call, data)
            if result is OVER:
                raise StopIteration
            return result

        setattr(execute, _MARK, True)
        return execute

    def _reading(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        point, is_layer = self._hub.numbers_read, what == "a layer"

        @functools.wraps(method)
        def reading(thing: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_quiet() or (is_layer and is_symbolic(args, kwargs)):
                return method(thing, *args, **kwargs)
            with self._silence:
                return point.run((what, thing), functools.partial(method, thing), *args, **kwargs)

        return reading

    def _noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        here = self._here

        @functools.wraps(call)
        def noted(function: Any, *args: Any, **kwargs: Any) -> Any:
            execution = getattr(here, "execution", None)
            if execution is not None and tf.executing_eagerly():
                execution.functions.append(function)
            return call(function, *args, **kwargs)

        return noted

    def _quiet(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def quiet(*args: Any, **kwargs: Any) -> Any:
            with self._silence:
                return call(*args, **kwargs)

        return quiet

    def _keeping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def keeping(callback: Any, *args: Any, **kwargs: Any) -> Any:
            self._hub.weights_kept.publish(callback)
            with self._silence:
                return call(callback, *args, **kwargs)

        return keeping

    def _variable_made(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def __init__(variable: Any, *args: Any, **kwargs: Any) -> None:
            make(variable, *args, **kwargs)
            if is_of_itself(variable) and not variable.name.startswith(SCOPE):
                self._hub.variable_made.publish(variable)

        return __init__

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def applying(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "execution", None) is None:
                self._hub.optimizer_applied.publish(optimizer)
            return apply(optimizer, *args, **kwargs)

        return applying

    def _writing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def writing(*args: Any, **kwargs: Any) -> Any:
            self._hub.written_past.publish()
            with self._silence:
                return write(*args, **kwargs)

        return writing
