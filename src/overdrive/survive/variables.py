"""The variables of a program that computes with TensorFlow, in the order in which it made them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from overdrive.seams.keras.internals import array_of, value_of, variables_in
from overdrive.survive.refusals import CannotTake, OtherState


class Variables:
    """
    Attributes:
        callbacks: those that keep weights.
    """

    def __init__(self) -> None:
        self._made: list[Any] = []  # weakly
        self._data_sets: weakref.WeakSet[Any] = weakref.WeakSet()
        self.callbacks: list[Any] = []  # weakly

    def made(self, variable: Any) -> None:
        self._made.append(weakref.ref(variable))

    def opened(self, data_set: Any) -> None:
        self._data_sets.add(data_set)

    def keeps(self, callback: Any) -> None:
        if all(each() is not callback for each in self.callbacks):
            self.callbacks.append(weakref.ref(callback))

    def of_data(self) -> list[Any]:
        """Those that data sets use: they draw when the run is made again, too."""
        return [variable for each in list(self._data_sets) for variable in variables_in(each)]

    def take(self, blocks: list[Any]) -> dict[str, Any]:
        """For a snapshot's header; bytes are added to `blocks`.

        Raises:
            CannotTake: one is of no usual kind.
        """
        gc.collect()  # a variable that nobody can reach may be gone when the run is made again
        drawn = {id(each) for each in self.of_data()}
        found = []
        for number, variable in self._living():
            if id(variable) in drawn or variable.dtype in (tf.resource, tf.variant) or not _is_set(variable):
                continue
            if variable.dtype == tf.string:
                raise CannotTake(f"{variable.name} is a variable of text")
            found.append([number, variable.dtype.name, *_taken(array_of(value_of(variable)), blocks)])
        kept = [_kept_weights(each(), blocks) for each in self.callbacks]
        return {"variables": found, "weights": kept}

    def put_back(self, told: dict[str, Any], block: Any) -> None:
        """
        Raises:
            OtherState: this run made others.
        """
        living = dict(self._living())
        if len(told["weights"]) != len(self.callbacks):
            raise OtherState("another number of callbacks that keep weights")
        values = [(living.get(number), dtype, shape, place) for number, dtype, shape, place in told["variables"]]
        for variable, dtype, shape, place in values:
            if variable is None:
                raise OtherState(f"a variable of shape {shape} is not there")
            if variable.dtype.name != dtype or not variable.shape.is_compatible_with(shape):
                about = f"{variable.dtype.name} of shape {variable.shape}"
                raise OtherState(f"{variable.name} was a {dtype} of shape {shape}, and is {about}")
            variable.assign(_array(block(place), variable.dtype.as_numpy_dtype, shape))
        for each, kept in zip(self.callbacks, told["weights"], strict=True):
            callback = each()
            if (callback is None) is not (kept == "gone"):
                raise OtherState("a callback that keeps weights is not there")
            if callback is not None:
                arrays = [_array(block(place), np.dtype(dtype), shape) for dtype, shape, place in kept or ()]
                callback.best_weights = None if kept is None else arrays

    def _living(self) -> Iterable[tuple[int, Any]]:
        return [(number, there) for number, each in enumerate(self._made) if (there := each()) is not None]


def _is_set(variable: Any) -> bool:
    return bool(variable.is_initialized())


def _taken(array: Any, blocks: list[Any]) -> list[Any]:
    """Its shape and its block."""
    blocks.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return [list(array.shape), len(blocks) - 1]


def _kept_weights(callback: Any, blocks: list[Any]) -> Any:
    """ "gone" where the callback is, None where it keeps none."""
    if callback is None:
        return "gone"
    weights = getattr(callback, "best_weights", None)
    return None if weights is None else [[each.dtype.str, *_taken(each, blocks)] for each in weights]


def _array(data: Any, dtype: Any, shape: list[int]) -> Any:
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
