"""What TensorFlow computes for a program, as JSON and back: tensors, arrays, and dicts and lists of them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import tensorflow as tf

from overdrive.survive.answers import Told

_PLAIN = (bool, int, float, str, type(None))


class CannotTell(Exception):
    """It is of another kind, which the message names."""


def told(thing: Any, array_told: Told) -> Any:
    """
    Args:
        array_told: keeps count of what is large.

    Raises:
        CannotTell: see there.
        TooMuch: it is too large for the journal.
    """
    kind = type(thing)
    if kind in _PLAIN:
        return ["plain", thing]
    if kind is dict and all(type(name) is str for name in thing):
        return ["dict", {name: told(value, array_told) for name, value in thing.items()}]
    if kind in (list, tuple):
        return [kind.__name__, [told(value, array_told) for value in thing]]
    if isinstance(thing, (np.ndarray, np.generic)) and not thing.dtype.hasobject:
        return ["array" if isinstance(thing, np.ndarray) else "number", thing.dtype.str, *_bytes(thing, array_told)]
    if isinstance(thing, tf.Tensor) and hasattr(thing, "numpy") and thing.dtype.is_numpy_compatible:
        value = thing.numpy()
        if not value.dtype.hasobject if hasattr(value, "dtype") else False:
            return ["tensor", thing.dtype.name, *_bytes(value, array_told)]
        raise CannotTell(f"tensor of {thing.dtype.name}")
    raise CannotTell(kind.__qualname__)


def given(told: Any) -> Any:
    kind, *about = told
    if kind == "plain":
        return about[0]
    if kind == "dict":
        return {name: given(value) for name, value in about[0].items()}
    if kind in ("list", "tuple"):
        found = list(map(given, about[0]))
        return found if kind == "list" else tuple(found)
    dtype = tf.dtypes.as_dtype(about[0]).as_numpy_dtype if kind == "tensor" else np.dtype(about[0])
    array = np.frombuffer(base64.b64decode(about[2]), dtype=dtype).reshape(about[1])
    if kind == "number":
        return array[()]
    return tf.constant(array) if kind == "tensor" else array.copy()


def _bytes(value: Any, array_told: Told) -> list[Any]:
    array = np.asarray(value)
    return [list(array.shape), array_told(array)["array"]]
