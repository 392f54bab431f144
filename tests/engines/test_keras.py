"""An engine answers calls of a Keras model only where that was proved; everything else is the model's own call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from overdrive.core.places import engines_folder
from overdrive.engines.keras.answering import KerasAnswers
from overdrive.engines.keras.engine import Engines
from overdrive.worker.session import Session
from tests.engines.frozen_runtime import Frozen
from tests.engines.keras_inputs import X, network, random_inputs


def _called(model: Any, x: Any, **given: Any) -> Any:
    return model(x, **given)


def _predicted(model: Any, x: Any, **given: Any) -> Any:
    return model.predict(x, verbose=0, **given)


def _on_batch(model: Any, x: Any) -> Any:
    return model.predict_on_batch(x)


WAYS: dict[str, Callable[..., Any]] = {"call": _called, "predict": _predicted, "predict_on_batch": _on_batch}
ways = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)


class Served:
    """A model in a session in which an engine may answer."""

    def __init__(self, model: Any, runtime: Frozen | None = None) -> None:
        self.model, self.runtime = model, runtime or Frozen()
        self.answers = KerasAnswers(Engines(self.runtime), "engine")

    def __enter__(self) -> Served:
        self._session = Session(inference=True)
        self._session.__enter__()
        self._seams = self._session.seams
        with self._seams.owned_by("engine"):
            self._seams.answer_called.subscribe_innermost(self.answers.called)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.__exit__(None, None, None)
        assert not self._seams.left_out

    def own(self, ask: Any, *args: Any, **given: Any) -> Any:
        """The model's own answer."""
        self._seams.switch("engine", False)
        try:
            return ask(self.model, *args, **given)
        finally:
            self._seams.switch("engine", True)

    def answered(self, ask: Any, *args: Any, **given: Any) -> bool:
        """Whether an engine answers such a call; its answer is the model's in any case."""
        before = self.answers.answered
        found, expected = ask(self.model, *args, **given), self.own(ask, *args, **given)
        assert type(found) is type(expected)
        keras.tree.assert_same_structure(found, expected)
        for one, other in zip(*map(keras.tree.flatten, (found, expected)), strict=True):
            assert type(one) is type(other) and one.dtype == other.dtype
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-4, atol=1e-6)
        return self.answers.answered > before

    def warm(self, ask: Any, *args: Any, **given: Any) -> None:
        for _ in range(7):
            ask(self.model, *args, **given)
        assert self.answered(ask, *args, **given), self.answers.told()


@ways
def test_it_answers_once_two_answers_agreed(ask: Any) -> None:
    with Served(network()) as served:
        found = [served.answered(ask, X) for _ in range(12)]
    # The first is watched, two are made by both.
    assert found == [False] * 3 + [True] * 9
    assert served.runtime.built == 1
    left = "made by both and compared (2), a shape of inputs that is new (1)"
    assert served.answers.told() == f"engine answered 9 of 12 calls; the model itself the others: {left}"


@ways
def test_inputs_that_are_not_finite_are_the_models(ask: Any) -> None:
    with Served(network()) as served:
        served.warm(ask, X)
        for value in (np.nan, np.inf):
            other = X.copy()
            other[0, 0, 0, 0] = value
            assert not served.answered(ask, other)
        assert served.answered(ask, X)
    assert served.answers.left["an input holds NaN or infinity"] == 2


def test_a_place_that_is_not_in_a_table_is_the_models_error() -> None:
    """An engine may answer it. So of others than were compared it is asked only once the model has answered one."""
    table = layers.Embedding(100, 4)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table, layers.Flatten(), layers.Dense(2)])
    with Served(model) as served:
        served.warm(_called, np.int32([[10, 20, 30]]))
        before = served.answers.answered
        for value in (100, 10**6):
            with pytest.raises(tf.errors.InvalidArgumentError):
                model(np.int32([[10, 20, value]]))
        assert served.answers.answered == before
        assert not served.answered(_called, np.int32([[10, 99, 30]]))
        assert served.answered(_called, np.int32([[10, 98, 30]])) and served.answered(_called, np.int32([[10, 20, 30]]))


def test_so_is_one_that_is_given_as_a_fraction() -> None:
    """Keras makes whole numbers of them itself."""
    table = layers.Embedding(100, 4)
    model = keras.Sequential([keras.Input((3,)), table, layers.Flatten(), layers.Dense(2)])
    with Served(model) as served:
        served.warm(_called, np.float32([[10, 20, 30]]))
        before = served.answers.answered
        with pytest.raises(tf.errors.InvalidArgumentError):
            model(np.float32([[10, 20, 100]]))
        assert served.answers.answered == before
        assert not served.answered(_called, np.float32([[10, 99, 30]]))
        assert served.answered(_called, np.float32([[10, 98, 30]]))


def test_fractions_of_which_no_whole_numbers_are_made_have_no_ends() -> None:
    with Served(network()) as served:
        served.warm(_called, X)
        assert served.answered(_called, X * 9)


def _trained(model: Any) -> None:
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(X, np.ones((8, 4)), verbose=0)


def _trained_on_batch(model: Any) -> None:
    model.compile(keras.optimizers.Adam(0.5), "mse")
    model.train_on_batch(X, np.ones((8, 4)))


def _in_a_graph(model: Any) -> None:
    kernel = model.layers[0].kernel

    @tf.function
    def write() -> None:
        kernel.assign_add(tf.ones_like(kernel))

    write()


def _a_row(model: Any) -> None:
    """TensorFlow copies the variable at each reading from here on."""
    model.layers[-1].kernel.value.scatter_nd_update([[0]], [[9.0] * 4])


def _reloaded(model: Any) -> None:
    other = network()
    other.set_weights([each + 0.25 for each in other.get_weights()])
    folder = Path(engines_folder()).parent
    folder.mkdir(parents=True, exist_ok=True)
    other.save_weights(folder / "other.weights.h5")
    model.load_weights(folder / "other.weights.h5")


def _another_variable(model: Any) -> None:
    """In the place of the one that a layer has."""
    other = layers.Conv2D(3, 3)
    other.build((None, 6, 6, 1))
    vars(model.layers[0])["_kernel"] = other._kernel


CHANGES: dict[str, Callable[[Any], Any]] = {
    "weights": lambda model: model.layers[0].kernel.assign(model.layers[0].kernel * 2),
    "in place": lambda model: model.layers[0].kernel.value.assign_add(tf.ones_like(model.layers[0].kernel.value)),
    "one of TensorFlow's operations": lambda model: tf.raw_ops.AssignAddVariableOp(
        resource=model.layers[0].bias.value.handle, value=tf.ones(3)
    ),
    "in a graph": _in_a_graph,
    "a row": _a_row,
    "all weights": lambda model: model.set_weights([each * 0.5 for each in model.get_weights()]),
    "weights of a file": _reloaded,
    "by fit": _trained,
    "by train_on_batch": _trained_on_batch,
    "a moving mean": lambda model: model.layers[1].moving_mean.assign_add([0.5] * 3),
    "an attribute": lambda model: setattr(model.layers[1], "epsilon", 10.0),
    "an activation": lambda model: setattr(model.layers[0], "activation", keras.activations.tanh),
    "a variable": _another_variable,
    "a call of its own": lambda model: setattr(model.layers[-1], "call", lambda x, training=None: x[:, :4] * 3),
}


@pytest.mark.parametrize("ask", [_called, _on_batch])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_engine_is_not_stale(change: Callable[[Any], Any], ask: Any) -> None:
    """Of `predict` Keras's own graph is traced once, and knows nothing of attributes that change later."""
    with Served(network()) as served:
        served.warm(ask, X)
        before = np.array(ask(served.model, X))
        change(served.model)
        for _ in range(8):
            served.answered(ask, X)
        assert ask is _on_batch or not np.allclose(before, np.array(ask(served.model, X)))


@pytest.mark.parametrize("change", ["weights", "in place", "a row", "by fit", "an attribute"])
def test_after_a_change_an_engine_of_the_new_model_answers(change: str) -> None:
    with Served(network()) as served:
        served.warm(_called, X)
        CHANGES[change](served.model)
        served.warm(_called, X)
        assert served.runtime.built == 2 and served.answers.left["the model was changed"] == 1


def test_what_is_written_and_is_the_same_is_no_change() -> None:
    with Served(network()) as served:
        served.warm(_called, X)
        for _ in range(9):
            served.model.set_weights(served.model.get_weights())
            served.answered(_called, X)
        assert "the model was changed" not in served.answers.left


def test_weights_that_always_change_leave_the_model_alone() -> None:
    with Served(network()) as served:
        for call in range(60):
            served.answered(_called, X)
            if not call % 7:
                served.model.layers[0].bias.assign_add([0.1] * 3)
        assert served.answers.left["the model changes from call to call"] > 0


def test_batches_of_predict_and_the_last_one() -> None:
    x = np.random.default_rng(1).normal(size=(50, 6, 6, 1)).astype("float32")
    with Served(network()) as served:
        served.warm(_predicted, x, batch_size=16)
        for _ in range(8):
            served.answered(_predicted, x, batch_size=16)
    assert served.runtime.built == 2, "of 16 and of 2"
    assert served.answers.answered > 30, served.answers.told()


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, *(type(each) for each in keras.tree.flatten(logs))))

    def on_predict_begin(self, logs: Any = None) -> None:
        self.seen.append(self.model.name)


def test_callbacks_of_predict_see_what_they_saw() -> None:
    with Served(network()) as served:
        served.warm(_predicted, X, batch_size=4)
        watches = Watch(), Watch()
        served.model.predict(X, batch_size=4, verbose=0, callbacks=[watches[0]])
        served.own(_predicted, X, batch_size=4, callbacks=[watches[1]])
    assert watches[0].seen == watches[1].seen and len(watches[0].seen) == 3


def joined() -> Any:
    keras.utils.set_random_seed(3)
    one, other = keras.Input((5,), name="one"), keras.Input((2,), name="other")
    both = layers.Concatenate()([layers.Dense(4, activation="relu")(one), other])
    label = layers.Dense(3)(both)
    return keras.Model([other, one], {"label": label, "sum": both, "again": label})


def named() -> Any:
    keras.utils.set_random_seed(3)
    given = {"one": keras.Input((5,), name="one"), "other": keras.Input((2,), name="other")}
    return keras.Model(given, [layers.Dense(2)(given["one"]), layers.Add()([given["other"], given["other"]])])


A, B = np.random.default_rng(1).normal(size=(6, 2)), np.random.default_rng(2).normal(size=(6, 5))


@ways
def test_of_several_inputs_and_outputs_none_is_another_one(ask: Any) -> None:
    a, b = A.astype("float32"), B.astype("float32")
    with Served(joined()) as served:
        served.warm(ask, [a, b])
        assert served.answered(ask, [a * 2, b * 3])
    with Served(named()) as served:
        served.warm(ask, {"other": a, "one": b})
        assert served.answered(ask, {"other": a * 3, "one": b * 2})


KINDS: dict[str, Any] = {
    "fp64": X.astype("float64"),
    "fp16": X.astype("float16"),
    "whole numbers": (X * 5).astype("int64"),
    "bytes": (X * 5).astype("uint8"),
    "truths": X > 0,
    "a tensor": tf.constant(X),
    "one row": X[:1],
    "in Fortran's order": np.asfortranarray(X),
    "every other": X[::2],
    "read only": np.broadcast_to(X[:1], (4, 6, 6, 1)),
}


@ways
@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS)
def test_inputs_of_each_kind(x: Any, ask: Any) -> None:
    with Served(network()) as served:
        served.warm(ask, x)
        served.answered(ask, X)


class Own(np.ndarray):  # type: ignore[type-arg]
    """An array of a class of its own."""


def test_inputs_that_no_engine_takes_are_the_models() -> None:
    foreign = [X[:0], X.astype(">f4"), X.view(Own), tf.cast(X, tf.bfloat16), tf.Variable(X)]
    with Served(network()) as served:
        served.warm(_called, X)
        for x in foreign:
            before = served.answers.answered
            for _ in range(6):
                try:
                    served.own(_called, x)
                except Exception as error:
                    with pytest.raises(type(error)):
                        served.model(x)
                else:
                    assert served.model(x).shape == (x.shape[0], 4)
            assert served.answers.answered == before, x.dtype
        assert served.answered(_called, X)


def test_calls_of_another_kind_are_the_models() -> None:
    with Served(network()) as served:
        served.warm(_called, X)
        before = served.answers.answered
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(served.model(X))
        assert all(each is not None for each in tape.gradient(value, served.model.trainable_variables))
        tf.function(lambda x: served.model(x))(X)
        with pytest.raises(ValueError, match="incompatible"):
            served.model(X[:, :3])
        assert served.answers.answered == before and served.answered(_called, X)
        before = served.answers.answered
        served.model(X, training=True)  # moves the running means
        assert served.answers.answered == before and not served.answered(_called, X)
        served.warm(_called, X)


def test_several_batches_in_one_call_are_the_models() -> None:
    with Served(network()) as served:
        served.model.compile(steps_per_execution=2)
        for _ in range(8):
            assert not served.answered(_predicted, X, batch_size=2)
        assert served.answers.left["an input of a kind that no engine takes"] > 0


class Block(layers.Layer):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return x * 2


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.flat, self.last = layers.Flatten(), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.last(self.flat(x))


class OwnStep(keras.Model):  # type: ignore[misc]
    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data) * 2


def _of_own_step() -> Any:
    x = keras.Input((6, 6, 1))
    return OwnStep(x, layers.Dense(3)(layers.Flatten()(x)))


def _masked() -> Any:
    return keras.Sequential([keras.Input((4,)), layers.Embedding(9, 3, mask_zero=True)])


def _noisy() -> Any:
    """It draws where it does not train, too."""
    x = keras.Input((6, 6, 1))
    return keras.Model(x, layers.Dense(3)(layers.Dropout(0.5, seed=1)(layers.Flatten()(x), training=True)))


LEFT: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a layer of its own": (lambda: network(Block()), X, "own code"),
    "a subclass": (Subclassed, X, "own code"),
    "a step of its own": (_of_own_step, X, "own code"),
    "a lambda": (lambda: network(layers.Lambda(lambda x: x * 2)), X, "own code"),
    "a mask": (_masked, np.array([[1, 2, 0, 0]]), "masks"),
    "what draws": (_noisy, X, "draws random numbers"),
    "a loss": (lambda: network(layers.ActivityRegularization(l2=0.1)), X, "adds losses"),
}


@pytest.mark.parametrize(("make", "x", "why"), LEFT.values(), ids=LEFT)
def test_what_may_do_more_than_compute_is_left_alone(make: Callable[[], Any], x: Any, why: str) -> None:
    keras.utils.set_random_seed(3)
    alone = make()
    expected = [np.array(alone(x)) for _ in range(9)]
    keras.utils.set_random_seed(3)
    with Served(make()) as served:
        found = [np.array(served.model(x)) for _ in range(9)]
    assert all(map(np.array_equal, found, expected)) and served.answers.answered == 0
    assert why in served.answers.told() and why in served.answers.in_vain()


@ways
def test_a_wrong_engine_is_caught(ask: Any) -> None:
    for spoil in (lambda y: y * 1.001, lambda y: y[::-1], lambda y: y[:, ::-1], lambda y: y[:5]):
        with Served(network(), Frozen(spoil)) as served:
            assert not any(served.answered(ask, X) for _ in range(8))
        assert "another one" in served.answers.told() and not list(engines_folder().glob("*"))


def test_one_that_turns_wrong_is_caught_later() -> None:
    off = [1.0]
    with Served(network(), Frozen(lambda y: y * off[0])) as served:
        served.warm(_called, X)
        off[0] = 1.5
        for _ in range(32):
            served.model(X)
        assert not served.answered(_called, X) and "another one" in served.answers.told()


def _as_in_a_new_process() -> Any:
    """Layers have the names that the first ones have."""
    keras.utils.clear_session()
    return network()


def test_the_second_run_takes_what_the_first_has_built() -> None:
    def run(change: Callable[[Any], Any] = lambda model: None, **other: Any) -> tuple[int, int]:
        runtime = Frozen()
        vars(runtime).update(other)
        with Served(_as_in_a_new_process(), runtime) as served:
            change(served.model)
            served.warm(_called, X)
        return runtime.built, runtime.loaded_again

    assert run() == (1, 0) and run() == (0, 1)
    assert run(CHANGES["weights"]) == (1, 0)
    assert run(CHANGES["an attribute"]) == (1, 0)
    assert run(versions="2") == (1, 0)
    assert run() == (0, 1)
    for each in engines_folder().iterdir():
        each.write_bytes(each.read_bytes()[:-9])
    assert run() == (1, 0)


def test_a_kept_engine_that_answers_otherwise_is_built_anew() -> None:
    with Served(_as_in_a_new_process()) as served:
        served.warm(_called, X)

    class Turned(Frozen):
        def loaded(self, parts: Any) -> Any:
            self._spoilt = lambda y: y * 2
            return super().loaded(parts)

        def of_tensorflow(self, *given: Any) -> Any:
            self._spoilt = lambda y: y
            return super().of_tensorflow(*given)

    with Served(_as_in_a_new_process(), Turned()) as served:
        served.warm(_called, X)
    assert (served.runtime.built, served.runtime.loaded_again) == (1, 1)


def test_in_fewer_bits_the_first_calls_are_the_models_and_their_inputs_the_examples() -> None:
    runtime = Frozen(lambda y: y * 1.05, calibrating=6)
    runtime.narrow = True
    given = [np.random.default_rng(number).normal(size=X.shape).astype("float32") for number in range(20)]
    with Served(network(), runtime) as served:
        found = [np.array(served.model(each)) for each in given]
        expected = [np.array(served.own(_called, each)) for each in given]
    assert [each[0].tolist() for each in runtime.examples] == [each.tolist() for each in given[1:7]]
    assert all(map(np.array_equal, found[:8], expected[:8]))
    assert served.answers.answered > 5 and not all(map(np.array_equal, found, expected))


def test_a_strategy_of_the_programs_own_is_left_alone() -> None:
    with Served(None) as served:
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            served.model = network()
        for _ in range(8):
            served.model.predict(X, verbose=0)
        assert served.answers.answered == 0 and "spread over devices" in served.answers.told()


def test_another_thread_is_not_kept_waiting() -> None:
    inside, on = threading.Event(), threading.Event()

    def slow(array: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            on.wait(20)
        return array

    with Served(network(), Frozen(slow)) as served:
        served.warm(_called, X)
        expected = np.array(served.own(_called, X))
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(np.array(served.model(X))))
        thread.start()
        inside.wait(20)
        mine = np.array(served.model(X))
        on.set()
        thread.join()
        assert np.allclose(mine, expected, atol=1e-6) and np.allclose(found[0], expected, atol=1e-6)
        assert served.answers.left["another thread is being answered"] == 1


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_random_inputs_get_the_right_answers(count: int) -> None:
    with Served(keras.Sequential([layers.Rescaling(0.5, 1.0), layers.Dense(3)])) as served:
        served.model(np.ones((1, 4), "float32"))
        answered = 0
        for given in random_inputs(count):
            try:
                expected = np.array(served.own(_called, given))
            except Exception as error:
                with pytest.raises(type(error)):
                    served.model(given)
                continue
            found = np.array(served.model(given))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            answered += 1
        assert answered > count / 5 and served.answers.answered > 0
