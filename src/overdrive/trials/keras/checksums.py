"""Checksums and sketches of tensors as operations, so that they can be taken within a graph, on any device, under XLA.

A checksum is a sum of whole numbers that wraps around: it does not depend on the order of summation. Each
element's bits are multiplied by an odd number of its own, so that no change of one element goes unseen, and a change of
several with a probability of about 2^-64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from overdrive.seams.keras.journal import bits, value_of

_MOST_ELEMENTS = 1 << 16  # of a tensor that its sketch is made of
_BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
_ODD, _OTHER_ODD, _NEXT = (
    int(np.uint64(each).astype(np.int64)) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of splitmix64 (Steele et al. 2014)


def checksum(things: Iterable[Any]) -> Any:
    """Of tensors and variables, in their order: a scalar of int64."""
    total = tf.constant(0, tf.int64)
    for thing in things:
        total = total * _NEXT + _of_one(value_of(thing))
    return total


def _of_one(tensor: Any) -> Any:
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
    """Three numbers of fp64, as bits, that rounding hardly moves and other data does (see `trials.torch.sketch`)."""
    flat = tf.cast(tf.reshape(tensor, [-1])[:_MOST_ELEMENTS], tf.float64)
    flat = tf.where(tf.math.is_finite(flat), flat, tf.zeros_like(flat))
    size = tf.cast(tf.maximum(tf.size(flat), 1), tf.float64)
    norm = tf.maximum(tf.norm(flat), 1e-30)
    root_mean_square = norm / tf.sqrt(size)
    wave = tf.constant(np.cos(np.arange(_MOST_ELEMENTS) * 12.9898))[: tf.size(flat)]
    numbers = (tf.reduce_sum(flat * wave) / norm, tf.reduce_sum(flat) / size / root_mean_square)
    return [*map(bits, numbers), bits(tf.math.log(root_mean_square))]
