"""Keras models as hls4ml reads them, and designs of them where that is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
from keras import layers

from overdrive.engines.runtime import NoEngine
from overdrive.targets.child.keras.calls import CalledModel
from overdrive.targets.fpga import rtl
from overdrive.targets.fpga.fixed import Fixed
from overdrive.targets.fpga.keras_reading import Reading
from overdrive.targets.fpga.of_keras import KerasFrontEnd, KerasLayers
from overdrive.targets.fpga.precision import search
from tests.conftest import Run
from tests.targets.fpga.designs import design_of, widths

X = np.random.default_rng(0).normal(size=(50, 6, 6, 1)).astype("float32")


def pictures(*last: Any) -> Any:
    """With normalisations that can become a part of weights, and one that cannot."""
    keras.utils.set_random_seed(0)
    given = keras.Input((6, 6, 1))
    x = layers.Conv2D(3, 3, use_bias=False, name="first-one")(given)
    x = layers.BatchNormalization(name="into_first")(x)
    x = layers.ReLU(name="relu")(x)
    y = layers.Conv2D(3, 1, activation="relu", name="second")(layers.Dropout(0.4)(x))
    y = layers.BatchNormalization(name="after_relu")(y)
    x = layers.Flatten(name="flat")(layers.Add(name="sum")([x, y]))
    x = layers.BatchNormalization(scale=False, name="into_dense")(layers.Dense(4, name="dense")(x))
    for each in last:
        x = each(x)
    model = keras.Model(given, x)
    for each in model.layers:
        if isinstance(each, layers.BatchNormalization):
            each.set_weights([np.random.default_rng(1).uniform(0.5, 2, one.shape) for one in each.get_weights()])
    return model


def test_normalisations_and_activations_are_read_apart() -> None:
    model = pictures()
    before = model.get_weights()
    made = Reading(model).model
    assert [each.name for each in made.layers if not isinstance(each, layers.InputLayer)] == [
        *("first_one", "relu", "second", "second_relu", "after_relu", "sum", "flat", "dense")
    ]
    np.testing.assert_allclose(np.asarray(made(X)), np.asarray(model(X)), atol=1e-5)
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.parametrize(
    "last",
    [layers.Softmax, lambda: layers.Dense(3, activation="softmax", name="last"), lambda: layers.Activation("softmax")],
    ids=["layer", "of dense", "activation"],
)
def test_a_softmax_at_the_end_is_left_out_and_told(last: Any) -> None:
    model = pictures(last())
    front = KerasFrontEnd(model)
    found = front.answers(X)
    np.testing.assert_allclose(np.asarray(keras.ops.softmax(found)), np.asarray(model(X)), atol=1e-5)
    assert front.layers().ends_in_softmax and "softmax" in front.notes[0]
    inner = KerasFrontEnd(pictures(last(), layers.Dense(2, name="end")))
    assert not inner.layers().ends_in_softmax and not inner.notes


def test_a_sequential_model_that_was_added_to_is_read() -> None:
    """Each `add` calls all layers again, so that none has one output alone."""
    model = keras.Sequential([keras.Input((4,))])
    for size in (5, 3):
        model.add(layers.Dense(size, activation="tanh"))
    given = X.reshape(-1, 4)
    np.testing.assert_allclose(KerasFrontEnd(model).answers(given), np.asarray(model(given)), atol=1e-6)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def twice() -> Any:
    given, layer = keras.Input((4,)), layers.Dense(4, name="again")
    return keras.Model(given, layer(layer(given)))


def nested() -> Any:
    given = keras.Input((4,))
    return keras.Model(given, keras.Sequential([layers.Dense(3)], name="inner")(given))


def operation() -> Any:
    given = keras.Input((4,))
    return keras.Model(given, layers.Dense(3)(keras.ops.exp(given)))


@pytest.mark.parametrize(
    ("made", "why"),
    [(Subclassed, "no sequential"), (twice, "layer again is called"), (nested, "inner"), (operation, "is a Exp")],
)
def test_what_is_not_made_of_layers_is_refused_with_its_name(made: Any, why: str) -> None:
    with pytest.raises(NoEngine, match=why):
        KerasFrontEnd(made())


def test_the_search_finds_the_fewest_bits_that_are_enough() -> None:
    made = Reading(pictures()).model
    wanted = np.asarray(made(X))
    found = KerasLayers(made)

    def too_far(answers: Any, most: float = 0.02) -> bool:
        return float(np.sqrt(np.square(answers - wanted).mean())) > most

    types = search(found, X, too_far)
    assert types is not None and set(types) == set(found.names) and not too_far(found.answers(X, types))
    for name, each in types.items():  # none of them could do with a bit less
        assert too_far(found.answers(X, {**types, name: Fixed(each.integer, each.fraction - 1)})), name
    assert np.array_equal(np.asarray(made(X)), wanted)  # its weights are what they were
    assert found.weight_bits("dense") and found.weight_bits("flat") is None


@pytest.mark.parametrize(
    ("loss", "classes"),
    [
        ("sparse_categorical_crossentropy", True),
        (keras.losses.CategoricalCrossentropy(from_logits=True), True),
        (keras.losses.sparse_categorical_crossentropy, True),
        ("mse", False),
        (keras.losses.BinaryCrossentropy(), False),
        (["sparse_categorical_crossentropy"] * 2, False),
        (None, False),
    ],
)
def test_the_loss_that_it_is_compiled_with_tells_whether_outputs_are_classes(loss: Any, classes: bool) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("sgd", loss)
    assert CalledModel(model).of_classes(3) is classes


TRAIN = """
import keras
import numpy as np
from keras import layers
keras.utils.set_random_seed(0)
chance = np.random.default_rng(0)
centres = 1.5 * chance.normal(size=(3, 6))
labels = chance.integers(0, 3, 2400)
rows = (centres[labels] + 0.4 * chance.normal(size=(2400, 6))).astype("float32")
first = [keras.Input((6,)), layers.Dense(12), layers.BatchNormalization(), ACT]
model = keras.Sequential([*first, layers.Dense(3, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(rows[:800], labels[:800], epochs=6, verbose=0)
model.evaluate(rows[800:], labels[800:], verbose=0)
"""


def test_the_emulation_gives_the_same_classes(tmp_path: Path, overdrive: Run) -> None:
    pytest.importorskip("hls4ml")
    (tmp_path / "train.py").write_text(TRAIN.replace("ACT", "layers.ReLU(), layers.BatchNormalization()"))
    told = design_of(tmp_path, overdrive)
    assert told["inputs"] == 1600 and told["tested"] == 800 and told["bound"] <= told["margin"]
    assert told["classes"] == 3 and any("softmax at its end is left out" in each for each in told["notes"])
    assert len(widths(told)) == 5 and max(widths(told)) < 18  # narrower than what it began with
    assert {"hls4ml", "keras"} <= set(told["versions"])
    if lacking := rtl.missing():
        assert told["cycles"] is None and told["left_out"] == lacking
    else:
        assert told["cycles"]["inputs"] == told["inputs"] and told["cycles"]["interval"] == 1
        assert (tmp_path / "train.export-fpga" / "rtl" / "src" / "model.v").is_file()


def test_a_layer_that_the_front_end_does_not_take_is_named(tmp_path: Path, overdrive: Run) -> None:
    pytest.importorskip("hls4ml")
    (tmp_path / "train.py").write_text(TRAIN.replace("ACT", "layers.UnitNormalization(name='unit')"))
    done = overdrive("export", "--to", "fpga", "train.py", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "its layer unit" in last and "UnitNormalization" in last
    assert set(os.listdir(tmp_path)) - {"cache", "state"} == {"train.py"}
