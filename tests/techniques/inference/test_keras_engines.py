"""OpenVINO under Keras on TensorFlow, where both are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
from keras import layers

from overdrive.core.facts import Facts
from overdrive.engines.openvino import OpenVino
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.session import Session

KERAS = Facts(framework="keras", backend="tensorflow", inference=True, parameter_dtypes=("float32",))
CHANCE = np.random.default_rng(0)


def convolutions() -> Any:
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            *(layers.Conv2D(16, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D()),
            *(layers.SeparableConv2D(16, 3), layers.GlobalAveragePooling2D(), layers.Dropout(0.5)),
            layers.Dense(10, activation="softmax"),
        ]
    )


def tokens() -> Any:
    x = keras.Input((12,), dtype="int32")
    hidden = layers.Embedding(50, 16)(x)
    hidden = layers.LayerNormalization()(hidden + layers.MultiHeadAttention(2, 8)(hidden, hidden))
    hidden = layers.Dense(16, activation="gelu")(hidden)
    return keras.Model(x, {"hidden": hidden, "label": layers.Dense(3)(hidden[:, 0])})


def recurrent() -> Any:
    cell = layers.GRU(8, unroll=True)
    return keras.Sequential([keras.Input((7, 5)), layers.Bidirectional(cell), layers.Dense(2)])


def two_inputs() -> Any:
    one, other = keras.Input((5,)), keras.Input((2,))
    return keras.Model([other, one], [layers.Concatenate()([layers.Dense(4)(one), other]), layers.Dense(2)(one)])


def pictures(size: int = 4) -> Any:
    return CHANCE.normal(size=(size, 16, 16, 3)).astype("float32")


def sentences() -> Any:
    """With the first and the last token of the table: what no call had before is the model's own."""
    given = CHANCE.integers(0, 50, (2, 12)).astype("int32")
    given[:, 0] = 0, 49
    return given


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "convolutions": (convolutions, pictures),
    "tokens": (tokens, sentences),
    "recurrent": (recurrent, lambda: CHANCE.normal(size=(3, 7, 5)).astype("float32")),
    "two inputs": (two_inputs, lambda: [CHANCE.normal(size=(3, count)).astype("float32") for count in (2, 5)]),
}
ASKED: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda model, x: model(x),
    "predict": lambda model, x: model.predict(x, verbose=0),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize(("make", "given"), PROGRAMS.values(), ids=PROGRAMS)
def test_openvino_answers_as_the_model(make: Any, given: Any, ask: Any, capfd: Any) -> None:
    if reason := OpenVino().missing():
        pytest.skip(reason)
    keras.utils.set_random_seed(0)
    model, inputs = make(), [given() for _ in range(12)]
    expected = [ask(model, each) for each in inputs]
    capfd.readouterr()
    for built in (True, False):  # kept by the first
        with Session([("openvino", {})], inference=True) as session:
            found = [ask(model, each) for each in inputs]
        assert not session.seams.left_out
        answers = session.handles["openvino"].notes.answers
        assert answers.answered == 9, (built, answers.told())
        for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
            assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-4, atol=1e-5)
    assert capfd.readouterr() == ("", ""), "nothing is printed that the program did not print"


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_in_int8_it_answers_nearly_as_the_model(ask: Any, capfd: Any) -> None:
    runtime = OpenVino("int8")
    if reason := runtime.missing():
        pytest.skip(reason)
    keras.utils.set_random_seed(0)
    model, inputs = convolutions(), [pictures() for _ in range(30)]
    expected = [np.array(ask(model, each)) for each in inputs]
    capfd.readouterr()
    with Session([("openvino_narrow", {"format": "int8"})], inference=True) as session:
        found = [np.array(ask(model, each)) for each in inputs]
    assert not session.seams.left_out
    answers = session.handles["openvino_narrow"].notes.answers
    assert answers.answered >= 6, answers.told()
    errors = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, expected, strict=True)]
    assert max(errors[: runtime.calibrating]) < 1e-6, "the model itself"
    assert 1e-6 < max(errors) < 0.3, "in eight bits, and no other answer"
    assert capfd.readouterr() == ("", ""), "nothing is printed that the program did not print"


def test_weights_changed_after_the_engine_was_built_are_answered_by() -> None:
    if reason := OpenVino().missing():
        pytest.skip(reason)
    model, x = convolutions(), pictures()
    with Session([("openvino", {})], inference=True) as session:
        answered = 0
        for _ in range(3):
            for _ in range(12):
                found = np.array(model(x))
            answers = session.handles["openvino"].notes.answers
            assert answers.answered > answered, answers.told()
            answered = answers.answered
            session.seams.switch("openvino", False)
            np.testing.assert_allclose(found, np.array(model(x)), rtol=1e-4, atol=1e-5)
            session.seams.switch("openvino", True)
            model.layers[-1].bias.value.assign_add(np.arange(10, dtype="float32"))


def test_it_is_for_programs_on_tensorflow_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openvino", "openvino_narrow"):
        technique = catalogue()[name]
        assert "jax" in str(technique.applies(Facts(framework="keras", backend="jax", inference=True)))
        monkeypatch.setattr("overdrive.engines.openvino.find_spec", lambda module: None)
        assert " -m pip install " in str(technique.applies(KERAS))
        monkeypatch.setattr("overdrive.engines.openvino.find_spec", lambda module: module)
        assert technique.applies(KERAS) is None
    assert "not 32-bit" in str(technique.applies(Facts(framework="keras", parameter_dtypes=("float16",))))
