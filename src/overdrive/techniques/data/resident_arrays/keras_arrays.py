"""Arrays that Keras's `fit` was given, held on a device: each batch is gathered there, from its samples' numbers.

The numbers go through Keras's own adapter in the place of the arrays: the same samples in the same order, by the same
random draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.array_slicing import convert_to_sliceable
from keras.src.trainers.data_adapters.data_adapter import DataAdapter


def bytes_in(adapter: Any) -> int | None:
    """Of all arrays that it takes batches from; None where they are not plain arrays of numbers."""
    if type(adapter) is not ArrayDataAdapter:
        return None
    arrays = keras.tree.flatten(adapter._inputs)
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "biuf" for each in arrays):
        return None
    return int(sum(each.nbytes for each in arrays))


class HeldArrays(DataAdapter):  # type: ignore[misc]
    """In the place of an adapter whose `bytes_in` are known.

    Args:
        device: as the backend names it.
    """

    def __init__(self, adapter: Any, device: Any) -> None:
        order = {"batch_size": adapter._batch_size, "shuffle": adapter._shuffle}
        self._numbers = ArrayDataAdapter(np.arange(adapter._num_samples), **order)
        wrapped = convert_to_sliceable(adapter._inputs, target_backend="numpy")  # in the precision that Keras wants
        self._structure = keras.tree.map_structure(lambda _: 0, adapter._inputs)
        send = {"tensorflow": _to_tensorflow, "jax": _to_jax, "torch": _to_torch}[keras.backend.backend()]
        self._arrays = [send(each.array, device) for each in keras.tree.flatten(wrapped)]

    def get_tf_dataset(self) -> Any:
        """Not one of TensorFlow's own, whose functions run on the CPU: Keras fetches each batch before its step."""
        return _Gathering(self._numbers.get_tf_dataset(), self._gathered_by_tensorflow)

    def _gathered_by_tensorflow(self, numbers: Any) -> Any:
        import tensorflow as tf

        packed = self._packed([tf.gather(array, numbers, axis=0) for array in self._arrays])
        return keras.tree.lists_to_tuples(packed)

    def get_jax_iterator(self) -> Iterator[Any]:
        import jax

        gather = jax.jit(lambda arrays, numbers: [array[numbers] for array in arrays])
        for numbers in self._numbers.get_jax_iterator():
            yield self._packed(gather(self._arrays, numbers))

    def get_torch_dataloader(self) -> Any:
        return _Gathering(self._numbers.get_torch_dataloader(), self._gathered_by_torch)

    def _gathered_by_torch(self, numbers: Any) -> Any:
        return self._packed([array[numbers.to(array.device)] for array in self._arrays])

    def _packed(self, gathered: Any) -> Any:
        return keras.tree.pack_sequence_as(self._structure, gathered)

    def on_epoch_begin(self) -> None:
        self._numbers.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._numbers.on_epoch_end()

    @property
    def num_batches(self) -> Any:
        return self._numbers.num_batches

    @property
    def batch_size(self) -> Any:
        return self._numbers.batch_size

    @property
    def has_partial_batch(self) -> bool:
        return bool(self._numbers.has_partial_batch)

    @property
    def partial_batch_size(self) -> Any:
        return self._numbers.partial_batch_size


class _Gathering:
    """A loader of numbers, as one of their samples."""

    def __init__(self, loader: Any, gather: Callable[[Any], Any]) -> None:
        self._loader = loader
        self._gather = gather

    def __iter__(self) -> Iterator[Any]:
        return map(self._gather, self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def _to_tensorflow(array: Any, device: Any) -> Any:
    """But whole numbers of 32 bits, which TensorFlow wants in main memory, stay there."""
    import tensorflow as tf

    with tf.device("/CPU:0" if array.dtype == "int32" else device):
        return tf.identity(tf.convert_to_tensor(array))


def _to_jax(array: Any, device: Any) -> Any:
    import jax

    return jax.device_put(array, device)


def _to_torch(array: Any, device: Any) -> Any:
    return keras.ops.convert_to_tensor(array).to(device)
