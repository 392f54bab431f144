"""What digest logs and state replays write with on TensorFlow: operations within a graph, on any device, under XLA.

A checksum is a sum of whole numbers that wraps around: it does not depend on the order of summation. Each
element's bits are multiplied by an odd number of its own, so that no change of one element goes unseen, and a change of
several with a probability of about 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from overdrive.seams.keras.on_tensorflow import value_of
from overdrive.seams.keras.step_log_on_tensorflow import bits, variable_of_ours
from overdrive.worker.digests import MOST_SKETCHED, wave

_MOST_OPTIMIZERS = 16
_BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
_ODD, _OTHER_ODD, _NEXT = (
    int(np.uint64(each).astype(np.int64)) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of splitmix64 (Steele et al. 2014)

outside = tf.init_scope  # of the graph that is being traced


def constant(value: int) -> Any:
    return tf.constant(value, tf.int64)


def is_of_fractions(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating)


def checksum(things: Iterable[Any]) -> Any:
    """Of tensors and variables, in their order: a scalar of int64."""
    total = tf.constant(0, tf.int64)
    for thing in things:
        for part in _parts(thing):
            total = total * _NEXT + _of_one(part)
    return total


def _parts(thing: Any) -> list[Any]:
    """Dense tensors: a ragged or a sparse one is several, its values first."""
    if isinstance(thing, tf.RaggedTensor):
        return [thing.flat_values, *thing.nested_row_splits]
    if isinstance(thing, tf.SparseTensor):
        return [thing.values, thing.indices, thing.dense_shape]
    return [value_of(thing)]


def _of_one(tensor: Any) -> Any:
    if tensor.dtype.is_complex:
        tensor = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])
    if tensor.dtype == tf.string:
        whole = tf.strings.to_hash_bucket_fast(tensor, 2**62)
    elif tensor.dtype.is_floating:
        whole = tf.cast(tf.bitcast(tensor, _BITS[tensor.dtype.size]), tf.int64)
    else:
        whole = tf.cast(tensor, tf.int64)
    flat = tf.reshape(whole, [-1])
    place = tf.range(1, tf.size(flat, out_type=tf.int64) + 1, dtype=tf.int64) * _ODD
    mixed = tf.bitwise.bitwise_xor(place, tf.bitwise.right_shift(place, tf.constant(30, tf.int64))) * _OTHER_ODD
    weights = tf.bitwise.bitwise_or(mixed, tf.constant(1, tf.int64))
    return tf.reduce_sum(flat * weights) + tf.size(flat, out_type=tf.int64)


def sketch(tensor: Any) -> list[Any]:
    """`worker.digests.sketch`, as bits, by operations of a graph."""
    tensor = _parts(tensor)[0]
    size = tf.size(tensor)
    spacing = tf.bitwise.bitwise_or((size + MOST_SKETCHED - 1) // MOST_SKETCHED, 1)  # as `digests.spacing`
    flat = tf.cast(tf.reshape(tensor, [-1])[::spacing], tf.float64)
    flat = tf.where(tf.math.is_finite(flat), flat, tf.zeros_like(flat))
    size = tf.cast(tf.maximum(tf.size(flat), 1), tf.float64)
    norm = tf.maximum(tf.norm(flat), 1e-30)
    root_mean_square = norm / tf.sqrt(size)
    weights = tf.constant(wave(MOST_SKETCHED))[: tf.size(flat)]
    numbers = (tf.reduce_sum(flat * weights) / norm, tf.reduce_sum(flat) / size / root_mean_square)
    return [*map(bits, numbers), bits(tf.math.log(root_mean_square))]


class Tally:
    """Evaluations since the last step: how many, and checksums of what went in and of what came out."""

    def __init__(self) -> None:
        self._variable: Any = None

    def add(self, given: Any, answers: Any) -> None:
        kept = self._kept()
        kept.assign(tf.stack([kept[0] + 1, kept[1] * 31 + given, kept[2] * 31 + answers]))

    def take(self) -> list[Any]:
        kept = self._kept()
        found = [kept[0], kept[1], kept[2]]
        with tf.control_dependencies(found):
            kept.assign(tf.zeros_like(kept))
        return found

    def _kept(self) -> Any:
        if self._variable is None:
            self._variable = variable_of_ours(np.zeros(3, np.int64), "tally")
        return self._variable


class Notes:
    """What a chosen step came to, kept by the graph itself: it may be the first of a call that makes many."""

    def __init__(self) -> None:
        self._armed: Any = None  # variable: by optimizer, whether its next application is to be noted
        self._noted: dict[str, Any] = {}  # variables, by name

    def wanted(self, place: int) -> bool:
        return place < _MOST_OPTIMIZERS  # a graph is traced once

    def arm(self) -> None:
        self._armed.assign(np.ones(_MOST_OPTIMIZERS, np.bool_))

    def note(self, place: int, values: Mapping[str, Any]) -> None:
        if self._armed is None:
            self._armed = variable_of_ours(np.zeros(_MOST_OPTIMIZERS, np.bool_), "armed")
        for key, value in values.items():
            if key not in self._noted:
                self._noted[key] = variable_of_ours(np.zeros(value.shape, value.dtype.as_numpy_dtype), "noted")
        armed = self._armed[place]
        for key, value in values.items():
            self._noted[key].assign(tf.where(armed, value, self._noted[key]))
        flags = tf.one_hot(place, _MOST_OPTIMIZERS, on_value=False, off_value=True, dtype=tf.bool)
        with tf.control_dependencies([armed]):
            self._armed.assign(tf.logical_and(self._armed, flags))

    def results(self) -> dict[str, Any]:
        return {key: variable.numpy() for key, variable in self._noted.items()}


def dense(gradient: Any, scale: Any) -> Any:
    """A gradient as one tensor, and as it was before a loss was scaled."""
    tensor = tf.convert_to_tensor(gradient)
    return tensor if scale is None else tensor / tf.cast(scale, tensor.dtype)


def array(variable: Any) -> Any:
    return np.asarray(variable.numpy())


def assign(variable: Any, value: Any) -> None:
    variable.assign(tf.cast(value, variable.dtype))
