"""Batches gathered within TensorFlow's graph of a training step, from arrays that are on the device already.

Functions of `tf.data` run on the CPU. So what Keras's train function is handed as its iterator gives the numbers of the
next batch's samples, and gathers them where it is asked for it: in the function itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

_structures: list[Any] = []  # of batches: a type is told apart from others by its number here


class Batches(tf.experimental.ExtensionType):  # type: ignore[misc]
    """What Keras asks of an iterator. Being a type of TensorFlow's own, it is traced once for all epochs."""

    numbers: tf.data.Iterator
    arrays: tuple[tf.Tensor, ...]
    structure: int

    def get_next(self) -> Any:
        return _gathered(self.arrays, self.numbers.get_next(), self.structure)

    def get_next_as_optional(self) -> Any:
        return Next(self.numbers.get_next_as_optional(), self.arrays, self.structure)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return _gathered(self.arrays, next(self.numbers), self.structure)


tf.data.Iterator.register(Batches)  # Keras traces the loop over it only then


class Next(tf.experimental.ExtensionType):  # type: ignore[misc]
    """The next batch, if there is one: not gathered before it is asked for."""

    numbers: tf.experimental.Optional
    arrays: tuple[tf.Tensor, ...]
    structure: int

    def has_value(self) -> Any:
        return self.numbers.has_value()

    def get_value(self) -> Any:
        return _gathered(self.arrays, self.numbers.get_value(), self.structure)


class Dataset:
    """As a data set is iterated over, once an epoch."""

    def __init__(self, numbers: tf.data.Dataset, arrays: Sequence[Any], structure: Any) -> None:
        self._numbers = numbers
        self._arrays = tuple(arrays)
        self._structure = _number_of(structure)

    def __iter__(self) -> Any:
        return Batches(iter(self._numbers), self._arrays, self._structure)


def sent(array: Any, device: str) -> Any:
    """On the device; but whole numbers of 32 bits, which TensorFlow wants in main memory, stay there."""
    with tf.device("/CPU:0" if array.dtype == "int32" else device):
        return tf.identity(tf.convert_to_tensor(array))


def _gathered(arrays: Sequence[Any], numbers: Any, structure: int) -> Any:
    gathered = [tf.gather(array, numbers, axis=0) for array in arrays]
    return keras.tree.pack_sequence_as(_structures[structure], gathered)


def _number_of(structure: Any) -> int:
    plain = keras.tree.lists_to_tuples(keras.tree.map_structure(lambda _: 0, structure))
    if plain not in _structures:
        _structures.append(plain)
    return _structures.index(plain)
