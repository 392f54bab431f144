"""What is kept of a Keras program's calls and data, and what is made of them. TensorFlow itself answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from overdrive.targets.child import formats, runner
from overdrive.targets.child.keras import graph
from overdrive.targets.child.recorder import CallRecorder
from overdrive.targets.order import SIGNATURE, Made, Order, calls_in, made_in, write_order
from overdrive.worker.session import Session

Change = Callable[[dict[str, Any], list[Any]], list[Any]]  # of the answers, by the inputs


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """The target "fake": the graph itself answers, with no library and no file. Called with what it gets wrong."""
    made: list[Any] = []
    changes: list[Change] = []

    def placed(target: str, folder: Path, signature: Any) -> runner.Answer:
        runner.write_signature(folder, signature)
        function, names = made[-1].concrete, made[-1]._names

        def answer(inputs: dict[str, Any]) -> dict[str, Any]:
            found = [each.numpy() for each in function(*(tf.constant(inputs[name]) for name in names.inputs))]
            for change in changes:
                found = change(inputs, found)
            return dict(zip(names.outputs, found, strict=True))

        return answer

    monkeypatch.setitem(graph._SAVE, "fake", lambda graph, names, path: made.append(graph))
    monkeypatch.setitem(formats.ARTEFACTS, "fake", "model.fake")
    monkeypatch.setattr(formats, "versions", lambda target, framework: {framework: "0"})
    monkeypatch.setattr(runner, "placed", placed)
    monkeypatch.setattr("overdrive.targets.child.timing._SECONDS", 0.0)
    monkeypatch.setattr("overdrive.targets.child.dimensions._LONG", float("inf"))
    return changes.append


@dataclass
class Found:
    made: Made
    signature: Any
    calls: list[Any]  # what is recorded


def exported(program: Callable[[], object], folder: Path, **order: Any) -> Found:
    wanted = Order(**{"target": "fake", **order})
    write_order(folder, wanted)
    recorder = CallRecorder(wanted, folder)
    with Session([], [recorder]) as session:
        program()
        made = recorder._made()
        assert not session.seams.left_out
    path = made_in(folder) / SIGNATURE
    calls = [np.load(each)["input 0"] for each in sorted(calls_in(folder).glob("*recorded.npz"))]
    return Found(made, json.loads(path.read_text()) if path.exists() and not made.refused else None, calls)


def rows(count: int, seed: int = 0, width: int = 6) -> Any:
    return np.random.default_rng(seed).normal(size=(count, width)).astype("float32")


def network(compiled: bool = False) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(), layers.Dropout(0.5)]
    )
    model.add(layers.Dense(3))
    if compiled:
        model.compile("sgd", "mse")
    return model


def test_batches_of_predict_are_kept_and_the_batch_may_vary(answers: Any, tmp_path: Path) -> None:
    model, x = network(), rows(200)
    found = exported(lambda: model.predict(x, batch_size=10, verbose=0), tmp_path)
    assert not found.made.refused and (found.made.model, found.made.calls) == ("Sequential", 20)
    assert found.signature["inputs"] == [{"name": "input", "shape": ["batch", 6], "dtype": "float32"}]
    assert found.signature["outputs"] == [{"name": "output", "shape": ["batch", 3], "dtype": "float32"}]
    assert found.signature["values"] == {} and found.signature["versions"] == {"keras": "0"}
    assert len(found.calls) == 12 and np.array_equal(found.calls[-1], x[-10:])
    assert {1, 2, 3, 9, 10, 11} <= set(found.made.sizes["batch"])


def test_the_answers_kept_are_the_models_and_those_of_fp64(answers: Any, tmp_path: Path) -> None:
    model = network()
    exported(lambda: [model(rows(4, seed)) for seed in range(3)], tmp_path)
    with np.load(next(calls_in(tmp_path).glob("001*"))) as kept:
        own, exact = kept["own 0"], kept["exact 0"]
        assert np.array_equal(own, np.asarray(model(kept["input 0"])))
    assert exact.dtype == np.float64 and 0 < np.abs(exact - own).max() < 1e-5


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_data_of_the_last_evaluation_are_read_again(wrapped: bool, answers: Any, tmp_path: Path) -> None:
    """A step of `evaluate` takes its batch within a graph."""
    model, x, y = network(compiled=True), rows(64, 1), rows(64, 2, 3)

    def evaluate(data: Any, labels: Any) -> None:
        if wrapped:
            model.evaluate(tf.data.Dataset.from_tensor_slices((data, labels)).batch(8), verbose=0)
        else:
            model.evaluate(data, labels, batch_size=8, verbose=0)

    def program() -> None:
        evaluate(rows(64), y)
        model.fit(x, y, epochs=1, verbose=0)
        evaluate(x, y)

    found = exported(program, tmp_path)
    assert not found.made.refused and found.made.calls == 16
    assert len(found.calls) == 8 and np.array_equal(np.concatenate(found.calls), x)


def test_the_data_that_fit_validates_by_are_those_of_an_evaluation(answers: Any, tmp_path: Path) -> None:
    model, x, y = network(compiled=True), rows(40, 1), rows(40, 2, 3)
    found = exported(
        lambda: model.fit(rows(40), y, validation_data=(x, y), batch_size=10, epochs=2, verbose=0), tmp_path
    )
    assert np.array_equal(np.concatenate(found.calls), x) and not any(
        "nowhere else" in each for each in found.made.notes
    )


def test_of_a_model_that_is_trained_alone_the_inputs_are_those_of_training(answers: Any, tmp_path: Path) -> None:
    model, x = network(compiled=True), rows(40)
    before = model.get_weights()[0]
    found = exported(lambda: model.fit(x, rows(40, 2, 3), batch_size=10, epochs=3, verbose=0), tmp_path)
    assert sorted(np.concatenate(found.calls).tolist()) == sorted(x.tolist())
    assert any("trains the model and calls it nowhere else" in each for each in found.made.notes)
    assert not np.array_equal(before, model.get_weights()[0])  # the trained one is exported
    with np.load(next(calls_in(tmp_path).glob("001*"))) as kept:
        assert np.array_equal(kept["own 0"], np.asarray(model(kept["input 0"])))


def test_data_that_can_be_read_once_alone_are_told(answers: Any, tmp_path: Path) -> None:
    model, y = network(compiled=True), rows(8, 2, 3)
    batches = ((rows(8, seed), y) for seed in range(4))
    form = tf.TensorSpec((8, 6)), tf.TensorSpec((8, 3))
    data = tf.data.Dataset.from_generator(lambda: batches, output_signature=form)
    found = exported(lambda: model.evaluate(data, verbose=0), tmp_path)
    assert "cannot be read a second time" in found.made.refused


def test_a_model_that_answers_comes_before_one_that_is_trained(answers: Any, tmp_path: Path) -> None:
    model = network(compiled=True)
    features = keras.Model(model.inputs, model.layers[0].output)

    def program() -> None:
        model.fit(rows(16), rows(16, 2, 3), verbose=0)
        for seed in range(3):
            features.predict(rows(5, seed), verbose=0)

    found = exported(program, tmp_path)
    assert found.made.model == "Functional" and found.signature["outputs"][0]["shape"] == ["batch", 8]


def test_inputs_and_outputs_have_the_names_that_the_program_gave(answers: Any, tmp_path: Path) -> None:
    title, tags = keras.Input((4,), name="title"), keras.Input((2, 2), name="tags")
    joined = layers.Concatenate()([title, layers.Flatten()(tags)])
    model = keras.Model([title, tags], {"urgent": layers.Dense(1)(joined), "kind": layers.Dense(3)(joined)})
    given = [[rows(5, seed, 4), rows(20, seed, 1).reshape(5, 2, 2)] for seed in range(3)]
    found = exported(lambda: [model(each) for each in given], tmp_path)
    assert [each["name"] for each in found.signature["inputs"]] == ["title", "tags"]
    assert {each["name"]: each["shape"] for each in found.signature["outputs"]} == {
        "kind": ["batch", 3],
        "urgent": ["batch", 1],
    }


def test_sizes_that_varied_together_have_one_name(answers: Any, tmp_path: Path) -> None:
    one, other = keras.Input((None, 4)), keras.Input((None, 4))
    model = keras.Model([one, other], layers.Add()([one, other]) * 2)
    given = [rows(3 * size, width=4).reshape(3, size, 4) for size in (5, 7, 5, 9)]
    found = exported(lambda: [model([each, each]) for each in given], tmp_path)
    assert [each["shape"] for each in found.signature["inputs"]] == [["batch", "size_1", 4]] * 2


def test_whole_numbers_are_held_to_those_that_were_given(answers: Any, tmp_path: Path) -> None:
    """Which rows a table has, a graph does not tell; beyond its end an engine answers, where TensorFlow raises."""
    model = keras.Sequential([keras.Input((4,), dtype="int32"), layers.Embedding(50, 3), layers.Flatten()])
    given = [np.array([[3, 4, 5, 17]], "int32") + number for number in range(4)]
    found = exported(lambda: [model(each) for each in given], tmp_path)
    assert found.signature["values"] == {"input": {"min": 3, "max": 20}}


def test_a_size_that_the_engine_answers_otherwise_is_fixed(answers: Any, tmp_path: Path) -> None:
    answers(lambda inputs, found: found if len(inputs["input"]) == 8 else [each * 0 for each in found])
    model = network()
    found = exported(lambda: [model(rows(8, seed)) for seed in range(4)], tmp_path)
    assert found.signature["inputs"][0]["shape"] == [8, 6] and found.signature["dimensions"] == {}
    assert any("with others it answers batch 1 otherwise" in each for each in found.made.notes)


def test_an_engine_that_answers_otherwise_is_refused(answers: Any, tmp_path: Path) -> None:
    answers(lambda inputs, found: [each * 1.01 for each in found])
    model = network()
    assert "otherwise than the model" in exported(lambda: [model(rows(8)) for _ in range(3)], tmp_path).made.refused


class Draws(layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x))


class Counts(layers.Layer):
    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1.0)
        return x * 2


@pytest.mark.parametrize(
    ("layer", "given", "why"),
    [
        (Draws(), rows(4), "draws random numbers"),
        (Counts(), rows(4), "changes what it holds"),
        (layers.TextVectorization(vocabulary=["a", "b"]), tf.constant([["a b"]]), "is given text"),
        (layers.Lambda(tf.as_string), rows(4), "returns a string"),
        (layers.Dense(2), tf.constant(1j * rows(4)), "an array of complex64"),
    ],
)
def test_what_no_artefact_can_answer_is_refused(layer: Any, given: Any, why: str, answers: Any, tmp_path: Path) -> None:
    model = keras.Sequential([layer])
    assert why in exported(lambda: [model(given) for _ in range(4)], tmp_path).made.refused


def test_a_compiler_of_pytorchs_takes_none(answers: Any, tmp_path: Path) -> None:
    model = network()
    found = exported(lambda: [model(rows(4, seed)) for seed in range(4)], tmp_path, target="aoti")
    assert "aoti is for models of PyTorch alone" in found.made.refused


def test_a_model_within_a_function_of_the_programs_own_is_not_seen(answers: Any, tmp_path: Path) -> None:
    model = network()
    function = tf.function(lambda x: model(x, training=False))
    assert "outside of a function of its own" in exported(lambda: function(rows(4)), tmp_path).made.refused
