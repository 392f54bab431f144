"""This Keras, TensorFlow and JAX have the private names that are relied on."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from tests.seams.keras.private_names import OF_DATA, OF_KERAS

keras = pytest.importorskip("keras")


def thing_of(kind: str) -> Any:
    """An object or a class of that kind; the source that gives the name, where an object gets it only later."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    match kind:
        case "layer":
            return model
        case "layer on PyTorch":
            pytest.importorskip("torch")
            return inspect.getsource(import_module("keras.src.backend.torch.layer"))
        case "batch normalisation":
            return keras.layers.BatchNormalization()
        case "optimizer":
            optimizer = keras.optimizers.SGD()
            optimizer.build(model.trainable_variables)
            return optimizer
        case "symbolic tensor":
            return model.outputs[0]
        case "masked tensor":
            return inspect.getsource(import_module("keras.src.backend.common.masking"))
        case "policy":
            return keras.DTypePolicy("float64")
        case "JAX's trainer":
            pytest.importorskip("jax")
            return import_module("keras.src.backend.jax.trainer").JAXTrainer
        case "JAX's tracer":
            return pytest.importorskip("jax").core.Tracer
        case "TensorFlow's context":
            pytest.importorskip("tensorflow").random.set_seed(1)  # from then on it has a generator
            return import_module("tensorflow.python.eager.context").context()
        case "error of TensorFlow":
            return pytest.importorskip("tensorflow").errors.OpError(None, None, "", 0)
        case "function of TensorFlow":
            return pytest.importorskip("tensorflow").function(lambda: None)
        case "variables of TensorFlow":
            pytest.importorskip("tensorflow")
            return import_module("tensorflow.python.ops.resource_variable_ops")
        case "tensor of TensorFlow":
            return pytest.importorskip("tensorflow").constant(1.0)
        case "iterator over epochs":
            return import_module("keras.src.trainers.epoch_iterator").EpochIterator(np.ones((2, 2)))
        case "data set":
            return pytest.importorskip("tensorflow").data.Dataset.range(2)
        case "mapped data set":
            return pytest.importorskip("tensorflow").data.Dataset.range(2).map(lambda number: number)
    return import_module("keras.src.trainers.data_adapters.array_data_adapter").ArrayDataAdapter(np.ones((2, 2)))


@pytest.mark.parametrize("kind", [*OF_KERAS, *OF_DATA])
def test_this_version_has_the_private_names(kind: str) -> None:
    thing = thing_of(kind)
    has = (lambda name: name in thing) if isinstance(thing, str) else (lambda name: hasattr(thing, name))
    missing = [name for name in {**OF_KERAS, **OF_DATA}[kind] if not has(name)]
    assert not missing
