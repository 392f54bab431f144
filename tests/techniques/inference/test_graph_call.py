"""A graph makes the calls that were proved for it; everything else is the model's own eager call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from overdrive.engines.answers import Answers
from overdrive.engines.keras import graph
from overdrive.worker.session import Session
from tests.engines.keras_inputs import X, network, random_inputs


class Asked:
    """A model in a session with the technique."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __enter__(self) -> Asked:
        self.session = Session([("graph_call", {})], inference=True)
        self.session.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.__exit__(None, None, None)
        assert not self.session.seams.left_out, self.session.seams.left_out

    @property
    def graphs(self) -> Answers:
        found: Answers = self.session.handles["graph_call"].notes.answers
        return found

    def by_graph(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a graph answers such a call; its answer is the model's in any case."""
        notes = self.session.handles["graph_call"].notes
        before = notes.answers.answered if notes.answers else 0
        found = self.model(*args, **kwargs)
        self.session.seams.switch("graph_call", False)
        expected = self.model(*args, **kwargs)
        self.session.seams.switch("graph_call", True)
        for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-4, atol=1e-6)
            assert one.dtype == other.dtype
        return self.graphs.answered > before

    def warm(self, *args: Any, **kwargs: Any) -> None:
        for _ in range(12):
            self.model(*args, **kwargs)
        assert self.by_graph(*args, **kwargs)


def test_it_answers_once_two_answers_agreed() -> None:
    with Asked(network()) as asked:
        found = [asked.by_graph(X, training=False) for _ in range(12)]
    # The first is watched, two are made by both.
    assert found == [False] * 3 + [True] * 9
    left = "made by both and compared (2), a shape of inputs that is new (1)"
    assert asked.graphs.told() == f"graph_call answered 9 of 12 calls; the model itself the others: {left}"


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights": lambda model: model.layers[0].kernel.assign(model.layers[0].kernel * 2),
    "all weights": lambda model: model.set_weights([each * 0.5 for each in model.get_weights()]),
    "a moving mean": lambda model: model.layers[1].moving_mean.assign_add([0.5] * 3),
    "an attribute": lambda model: setattr(model.layers[1], "epsilon", 10.0),
    "an activation": lambda model: setattr(model.layers[0], "activation", keras.activations.tanh),
    "a call of its own": lambda model: setattr(model.layers[-1], "call", lambda x, training=None: x[:, :4] * 3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_graph_is_not_stale(change: Callable[[Any], Any]) -> None:
    with Asked(network()) as asked:
        asked.warm(X)
        before = np.array(asked.model(X))
        change(asked.model)
        for _ in range(8):
            asked.by_graph(X)
        assert not np.allclose(before, np.array(asked.model(X)))


class Own(layers.Layer):  # type: ignore[misc]
    calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


class OwnOperation(keras.Operation):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x * 2

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


def _joined() -> Any:
    x = keras.Input((6, 6, 1))
    return keras.Model(x, OwnOperation()(layers.Flatten()(x)))


def _with_loss() -> Any:
    return network(layers.ActivityRegularization(l2=0.1))


def _masked() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Embedding(9, 3, mask_zero=True)])


def _rnn() -> Any:
    return keras.Sequential([keras.Input((3, 4), batch_size=2), layers.GRU(3, stateful=True)])


LEFT: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a layer of its own": (lambda: network(Own()), X, "own code"),
    "an operation of its own": (_joined, X, "own code"),
    "a lambda": (lambda: network(layers.Lambda(lambda x: x * 2)), X, "own code"),
    "a function of its own": (lambda: network(layers.Dense(3, activation=lambda x: x**2)), X, "own code"),
    "a loss": (_with_loss, X, "adds losses"),
    "a mask": (_masked, np.array([[1, 2, 0, 0]]), "masks"),
    "a state": (_rnn, X[:2, :3, :4, 0], "keeps a state"),
}


@pytest.mark.parametrize(("make", "x", "why"), LEFT.values(), ids=LEFT)
def test_what_may_do_more_than_compute_is_left_alone(make: Callable[[], Any], x: Any, why: str) -> None:
    keras.utils.set_random_seed(3)
    alone = make()
    expected = [np.array(alone(x)) for _ in range(8)]
    keras.utils.set_random_seed(3)
    with Asked(make()) as asked:
        found = [np.array(asked.model(x)) for _ in range(8)]
    assert all(map(np.array_equal, found, expected)) and asked.graphs.answered == 0
    assert why in asked.graphs.told()


def test_calls_that_are_another_kind_are_the_models() -> None:
    with Asked(network()) as asked:
        asked.warm(X)
        before = asked.graphs.answered
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(asked.model(X))
        assert all(each is not None for each in tape.gradient(value, asked.model.trainable_variables))
        asked.model(X, training=True)
        asked.model.predict(X, verbose=0)
        tf.function(lambda x: asked.model(x))(X)
        with pytest.raises(ValueError, match="incompatible"):
            asked.model(X[:, :3])
        assert asked.graphs.answered == before
        asked.warm(X)


TRACED = graph.traced


def _spoil(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], Any]) -> None:
    """... the answers of all graphs."""

    def traced(*given: Any) -> Any:
        made = TRACED(*given)

        def spoilt(*leaves: Any) -> Any:
            return keras.tree.flatten(spoil(*made(*leaves)))

        spoilt.graph = made.graph  # type: ignore[attr-defined]
        return spoilt

    monkeypatch.setattr(graph, "traced", traced)


def test_a_wrong_graph_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for spoil in (lambda y: y * 1.001, lambda y: y[::-1], lambda y: y[:, ::-1], lambda y: y[:5], lambda y: [y, y]):
        _spoil(monkeypatch, spoil)
        with Asked(network()) as asked:
            assert not any(asked.by_graph(X) for _ in range(8))
        assert "another one" in asked.graphs.told()


def test_one_that_turns_wrong_is_caught_later(monkeypatch: pytest.MonkeyPatch) -> None:
    off = [1.0]
    _spoil(monkeypatch, lambda y: y * off[0])
    with Asked(network()) as asked:
        asked.warm(X)
        off[0] = 1.5
        for _ in range(32):
            asked.model(X)
        assert not asked.by_graph(X) and "another one" in asked.graphs.told()


def test_a_model_that_its_first_call_builds_has_a_graph_later() -> None:
    with Asked(keras.Sequential([layers.Dense(3), layers.BatchNormalization()])) as asked:
        asked.warm(X[0, :, :4, 0])


def test_of_many_models_the_oldest_are_let_go() -> None:
    with Asked(keras.Sequential([keras.Input((4,)), layers.Dense(2)])) as asked:
        oldest = weakref.ref(asked.model)
        for _ in range(9):
            for _ in range(4):
                asked.model(X[0, :, :4, 0])
            asked.model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
        gc.collect()
        assert oldest() is None


def test_regularised_weights_are_no_losses_of_a_call() -> None:
    with Asked(network(layers.Dense(3, kernel_regularizer="l2"))) as asked:
        asked.warm(X)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_random_inputs_get_the_right_answers(count: int) -> None:
    with Asked(keras.Sequential([layers.Rescaling(0.5, 1.0), layers.Dense(3)])) as asked:
        asked.model(np.ones((1, 4), "float32"))
        answered = 0
        for given in random_inputs(count):
            asked.session.seams.switch("graph_call", False)
            try:
                expected: Any = np.array(asked.model(given))
            except Exception as error:
                expected = type(error)
            asked.session.seams.switch("graph_call", True)
            if isinstance(expected, type):
                with pytest.raises(expected):
                    asked.model(given)
                continue
            found = np.array(asked.model(given))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            answered += 1
        assert answered > count / 5 and asked.graphs.answered > 0


def test_a_call_whose_input_brings_a_mask_along_is_the_models() -> None:
    embedding = layers.Embedding(9, 4, mask_zero=True)
    model = keras.Sequential([layers.LSTM(3), layers.Dense(2)])
    full, padded = embedding(np.ones((2, 5), "int32")), embedding(np.array([[1, 2, 3, 0, 0]] * 2, "int32"))
    with Asked(model) as asked:
        for _ in range(6):
            asked.model(full)
        assert not asked.by_graph(padded)  # which compares them, too
        asked.warm(np.ones((2, 5, 4), "float32"))
