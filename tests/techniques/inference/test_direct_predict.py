"""`predict` without a pipeline of its own gives what it gives with one, and says the same meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import keras
import numpy as np
import tensorflow as tf

from overdrive.core.facts import Facts
from overdrive.techniques.catalogue import catalogue
from overdrive.worker.own_facts import OwnFacts
from overdrive.worker.session import Session

KERAS = Facts(framework="keras", backend="tensorflow", inference=True)


def model() -> Any:
    keras.utils.set_random_seed(3)
    one, other = keras.Input((5,), name="one"), keras.Input((2,), name="other")
    joined = keras.layers.Concatenate()([keras.layers.Dense(4, activation="relu")(one), other])
    return keras.Model([one, other], {"label": keras.layers.Dense(3)(joined), "sum": joined})


def inputs(count: int, kind: str = "float32") -> tuple[Any, Any]:
    chance = np.random.default_rng(count)
    return chance.normal(size=(count, 5)).astype(kind), chance.normal(size=(count, 2)).astype(kind)


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, [np.array(each).tobytes() for each in keras.tree.flatten(logs)]))


ASKED: dict[str, Any] = {
    "one sample": lambda m: m.predict(list(inputs(1)), verbose=0),
    "batches and a rest": lambda m: m.predict(inputs(75), batch_size=10, verbose=0),
    "by name": lambda m: m.predict(dict(zip(("one", "other"), inputs(40), strict=True)), verbose=0),
    "in fp64": lambda m: m.predict(list(inputs(40, "float64")), verbose=0),
    "of whole numbers": lambda m: m.predict([each.astype("int64") for each in inputs(40)], verbose=0),
    "tensors": lambda m: m.predict([tf.constant(each) for each in inputs(40)], verbose=0),
    "so many steps": lambda m: m.predict(list(inputs(40)), steps=4, verbose=0),
    "a data set": lambda m: m.predict(tf.data.Dataset.from_tensor_slices((inputs(40),)).batch(7), verbose=0),
}


def bits(answer: Any) -> Any:
    return {name: (value.dtype, value.shape, value.tobytes()) for name, value in answer.items()}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_the_answers_are_the_same_in_every_bit(ask: Any) -> None:
    expected = bits(ask(model()))
    with Session([("direct_predict", {})], inference=True) as session:
        asked = model()
        assert bits(ask(asked)) == expected and bits(ask(asked)) == expected
    assert not session.seams.left_out


def test_callbacks_and_the_bar_are_keras_own(capsys: pytest.CaptureFixture[str]) -> None:
    def told(asked: Any) -> tuple[Any, str]:
        watch = Watch()
        asked.predict(list(inputs(35)), batch_size=10, callbacks=[watch], verbose=1)
        return watch.seen, re.sub(r"( *\d+[mu]?s(/step)?)+ *", " TIME", capsys.readouterr().out.rsplit("\b", 1)[-1])

    expected = told(model())
    with Session([("direct_predict", {})], inference=True):
        assert told(model()) == expected
    assert len(expected[0]) == 4 and "4/4" in expected[1]


def test_no_pipeline_is_built_for_arrays_and_errors_are_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    plain = tf.data.Dataset.range
    monkeypatch.setattr(tf.data.Dataset, "range", lambda *a, **k: (built.append("one"), plain(*a, **k))[1])
    with Session([("direct_predict", {})], inference=True) as session:
        asked = model()
        asked.predict(list(inputs(4)), verbose=0)
        assert not built
        with pytest.raises(tf.errors.InvalidArgumentError, match="incompatible"):
            asked.predict([inputs(4)[0], inputs(4)[0]], verbose=0)
        with pytest.raises(ValueError, match=r"same.*(size|cardinality|first dimension)|sizes"):
            asked.predict([inputs(4)[0], inputs(5)[1]], verbose=0)
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            spread = model()
        spread.predict(list(inputs(4)), verbose=0)
        assert built and not session.seams.left_out
    asked.predict(list(inputs(4)), verbose=0)


def test_it_is_for_programs_that_predict() -> None:
    technique = catalogue()["direct_predict"]
    assert technique.applies(KERAS) is None
    assert "jax" in str(technique.applies(Facts(framework="keras", backend="jax", inference=True)))
    own = OwnFacts()
    with Session([], [own], inference=True):
        model()(list(inputs(2)))
        gathered = own.gathered("keras")
    assert gathered["direct_predict"] == {"predicts": False} and gathered["graph_call"] == {"calls": True}
    facts = Facts(framework="keras", backend="tensorflow", inference=True, own=gathered)
    assert technique.applies(facts) == "the program does not call predict()"
    assert catalogue()["graph_call"].applies(facts) is None
