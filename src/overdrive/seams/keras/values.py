"""Values of a program at Keras's seams that another run may have otherwise: read, and set.

Learning rate, weight decay, momentum and betas of an optimizer; the batch size of `fit` and of a `tf.data.Dataset`.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np

from overdrive.core.hyperparameters import LOADER, OPTIMIZER, ValuePlace
from overdrive.core.settings import Value
from overdrive.seams.keras.control import backend
from overdrive.seams.keras.internals import are_arrays
from overdrive.seams.varied import asked_for

# By the name of a place, the optimizer's attribute.
_ATTRIBUTES = {"weight_decay": "weight_decay", "momentum": "momentum", "beta1": "beta_1", "beta2": "beta_2"}
_FIRST_RATES = ("warmup_target", "initial_learning_rate")  # of Keras's schedules: the height that the others follow
_USUAL_BATCH = 32  # of `fit` on arrays


class ScaledRates:
    """Rates that are others while their optimizer is applied. So a schedule or a callback goes on as it is, at another
    height. What is made of a rate may be a part of a graph that is being traced."""

    def __init__(self, ramp: tuple[float, float, int] | None = None) -> None:
        """`ramp`: from which factor to which all rates grow, evenly on a logarithmic scale, and in how many steps."""
        self.first: dict[str, float] = {}  # values that the program had first, by their places' `key_of_any`
        self._ramp = ramp
        self._made: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._factors: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def made(self, optimizer: Any, rate: float, factor: float | None) -> None:
        self._made[optimizer] = rate
        if factor is not None:
            self._factors[optimizer] = factor

    def rate(self, optimizer: Any, rate: Any) -> Any:
        """What a step is made with, where the program has `rate`."""
        if self._ramp is not None and optimizer in self._made:
            low, high, steps = self._ramp
            done = keras.ops.cast(optimizer.iterations, "float32") / max(1, steps - 1)
            return self._made[optimizer] * low * keras.ops.power(high / low, done)
        factor = self._factors.get(optimizer)
        return rate if factor is None else keras.ops.multiply(rate, factor)


def of_optimizer(
    optimizer: Any, rate: Any, where: str, values: Mapping[str, Value], rates: ScaledRates
) -> list[ValuePlace]:
    """Its places as the program has them; those in `values` are set. `rate`: what it was made with."""
    kind = type(optimizer).__name__
    places = []
    height = _height(rate)
    if height:
        places.append(ValuePlace(OPTIMIZER, "lr", height, where, kind))
        wanted = asked_for(places[-1], height, values, rates.first)
        rates.made(optimizer, height, None if wanted is None else wanted / height)
    for name, attribute in _ATTRIBUTES.items():
        value = getattr(optimizer, attribute, None)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        places.append(ValuePlace(OPTIMIZER, name, float(value), where, kind))
        wanted = asked_for(places[-1], float(value), values, rates.first)
        if wanted is not None:
            setattr(optimizer, attribute, wanted)
    return places


def _height(rate: Any) -> float:
    """A learning rate as one number, of a schedule that which it starts at or grows to; 0 where that is not known."""
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return 0.0 if callable(rate) else _number(rate)
    try:
        told = rate.get_config()
    except NotImplementedError:  # one of the program's own
        told = {}
    given = [_number(told.get(name)) for name in _FIRST_RATES]
    with _outside_of_graphs():
        return next((each for each in given if each > 0), 0.0) or _number(rate(0)) or _number(rate(1))


def _outside_of_graphs() -> AbstractContextManager[Any]:
    """An optimizer may be used first where a step is traced: a number is wanted, and no part of the graph."""
    return sys.modules["tensorflow"].init_scope() if backend() == "tensorflow" else nullcontext()


def _number(rate: Any) -> float:
    try:
        value = float(rate)
    except (TypeError, ValueError):
        return 0.0
    if not math.isfinite(value):
        return 0.0
    # Of a configuration that was read from an optimizer: 0.001 comes as 0.0010000000474974513.
    return float(str(np.float32(value))) if float(np.float32(value)) == value else value


def of_fit(
    args: tuple[Any, ...], kwargs: dict[str, Any], where: str, values: Mapping[str, Value]
) -> tuple[tuple[Any, ...], dict[str, Any], ValuePlace | None, Any]:
    """What `fit` is to be called with, its place, and what it trains on where that has batches of its own."""
    try:
        given = inspect.signature(keras.Model.fit).bind_partial(None, *args, **kwargs).arguments
    except TypeError:  # the program's own error
        return args, kwargs, None, None
    data = tuple(given.get(name) for name in ("x", "y", "sample_weight"))
    if not are_arrays(data):
        return args, kwargs, None, data[0]
    size = given.get("batch_size") or _USUAL_BATCH
    if not isinstance(size, int):
        return args, kwargs, None, None
    place = ValuePlace(LOADER, "batch_size", size, where, "fit()")
    if place.key in values:
        args, kwargs = _with(args, kwargs, 2, int(values[place.key]))  # after x and y
    return args, kwargs, place, None


def of_batch(
    args: tuple[Any, ...], kwargs: dict[str, Any], where: str, values: Mapping[str, Value]
) -> tuple[tuple[Any, ...], dict[str, Any], ValuePlace | None]:
    """What a data set's `batch()` is to be called with, and its place; none where its size is no plain number."""
    size = args[0] if args else kwargs.get("batch_size")
    if not isinstance(size, (int, np.integer)) or size < 1:
        return args, kwargs, None
    place = ValuePlace(LOADER, "batch_size", int(size), where, "tf.data.Dataset")
    if place.key in values:
        args, kwargs = _with(args, kwargs, 0, int(values[place.key]))
    return args, kwargs, place


def _with(args: tuple[Any, ...], kwargs: dict[str, Any], at: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) > at:
        return (*args[:at], size, *args[at + 1 :]), kwargs
    return args, {**kwargs, "batch_size": size}
