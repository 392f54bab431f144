"""A small network with its inputs; and inputs of any shape and type for a layer that takes four numbers, those among
them that it refuses."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

_KINDS = ("float32", "float64", "float16", "int32", "uint8", "bool")
X = np.random.default_rng(0).normal(size=(8, 6, 6, 1)).astype("float32")


def network(*more: Any) -> Any:
    keras.utils.set_random_seed(3)
    first = [keras.Input((6, 6, 1)), layers.Conv2D(3, 3, activation="relu"), layers.BatchNormalization()]
    return keras.Sequential([*first, layers.Flatten(), layers.Dropout(0.5), *more, layers.Dense(4)])


def random_inputs(count: int) -> Iterator[Any]:
    """Arrays and tensors, half of them of one shape and type: only what comes again is answered."""
    chance = random.Random(0)
    for _ in range(count):
        shape = [chance.randint(1, 3) for _ in range(chance.randint(0, 2))] + [chance.choice((4, 4, 4, 5))]
        shape, kind = (shape, chance.choice(_KINDS)) if chance.random() < 0.5 else ([2, 4], "float32")
        x = (np.random.default_rng(chance.randint(0, 9)).normal(size=shape) * 3).astype(kind)
        yield tf.constant(x) if chance.random() < 0.5 else x
