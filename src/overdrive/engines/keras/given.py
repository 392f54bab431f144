"""What a call of a Keras model is given, as far as a graph is made for it, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from overdrive.engines.runtime import PLAIN, plain_key
from overdrive.seams.keras.answers import PREDICT
from overdrive.seams.keras.internals import array_of, mask_of

# What OpenVINO takes; a number of bytes that is not the processor's way round TensorFlow does not take either.
NUMERIC = frozenset(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"))


@dataclass(frozen=True)
class Given:
    """`key` is equal for calls that one graph can make."""

    key: Any
    leaves: tuple[Any, ...]  # arrays and tensors, in order
    _like: Any
    kind: str
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
        """None where something is given that is no dense array, or has a mask, or more batches than one."""
        if kind == PREDICT:
            found = _one_batch(args, kwargs)
            if found is None:
                return None
            args, kwargs = (found,), {}
        if not all(isinstance(each, PLAIN) for each in kwargs.values()):
            return None
        leaves = tuple(keras.tree.flatten(args))
        if not leaves or any(not isinstance(each, (np.ndarray, tf.Tensor)) or each.dtype == object for each in leaves):
            return None
        if any(mask_of(each) is not None for each in leaves):
            return None  # of an embedding, say: Keras hands it on to the layers, a graph knows nothing of it
        forms = tuple((type(each), tuple(each.shape), each.dtype) for each in leaves)
        structure = repr(keras.tree.map_structure(lambda _: 0, args))
        more = tuple((name, plain_key(kwargs[name])) for name in sorted(kwargs))
        return cls((kind, structure, forms, more), leaves, args, kind, kwargs)

    def tensors(self) -> list[Any]:
        return [tf.convert_to_tensor(each) for each in self.leaves]

    def arrays(self) -> list[Any]:
        """They share memory with what was given, and are read only."""
        return [np.asarray(each if isinstance(each, np.ndarray) else array_of(each), order="C") for each in self.leaves]

    @property
    def numeric(self) -> bool:
        """Whether an engine takes them."""
        return all(
            (each.dtype.name in NUMERIC and 0 not in each.shape)
            and (type(each) is np.ndarray and each.dtype.isnative if isinstance(each, np.ndarray) else True)
            for each in self.leaves
        )

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """What the model is given, with these leaves; `predict_step` is given their first."""
        found: tuple[Any, ...] = keras.tree.pack_sequence_as(self._like, list(leaves))
        return found

    def call_of(self, model: Any) -> Callable[..., Any]:
        """The same call, of these leaves one by one; its answer's leaves."""

        return lambda *leaves: keras.tree.flatten(self.result_of(model, leaves))

    def result_of(self, model: Any, leaves: Sequence[Any] | None = None) -> Any:
        """The call's answer, as the model gives it. `leaves`: others."""
        args = self.arguments(self.leaves if leaves is None else leaves)
        return model.predict_step(args) if self.kind == PREDICT else model(*args, **self.kwargs)


def _one_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The inputs of the one batch that a predict function is handed; None where it is handed others."""
    if kwargs or len(args) != 1 or not isinstance(args[0], (list, tuple)) or len(args[0]) != 1:
        return None
    try:
        return data_adapter_utils.unpack_x_y_sample_weight(args[0][0])[0]
    except ValueError:
        return None


def signatures(leaves: Sequence[Any]) -> list[Any]:
    """What a graph is traced for."""
    return [
        tf.TensorSpec(each.shape, tf.as_dtype(each.dtype), name=f"input_{number}") for number, each in enumerate(leaves)
    ]
