"""Every way in which a Keras program asks its model is followed call by call, and what is none is not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.seams.hub import Seams
from overdrive.worker.answering import AnsweringObserver
from overdrive.worker.clock import InferenceClock
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from tests.seams.keras.programs import FIT, HEAD, run

BUILT = HEAD + "model.build((None, 6))\n"
WAYS = {
    "predict": ("model.predict(x, batch_size=32, verbose=0)", ["predict"] * 4, 100),
    "on a batch": ("model.predict_on_batch(x[:7])", ["predict"], 7),
    "of a data set": (
        "model.predict(tf.data.Dataset.from_tensor_slices(x).batch(50), verbose=0)",
        ["predict"] * 2,
        100,
    ),
    "a call": ("model(x[:5]), model(tf.constant(x[:3]), training=False)", ["call"] * 2, 8),
    "eagerly": ("model.compile(run_eagerly=True); model.predict(x, batch_size=50, verbose=0)", ["predict"] * 2, 100),
    "joined": ("both = keras.Sequential([keras.Input((6,)), model]); both(x[:4])", ["call"], 4),
}
NONE = {
    "to train": "model(x, training=True)",
    "in a graph": "tf.function(lambda x: model(x))(x)",
    "with gradients": "with tf.GradientTape(): model(x)",
    "to be built": "keras.Model(keras.Input((6,)), model(keras.Input((6,)))) if 0 else model(keras.Input((6,)))",
    "evaluated": "model.compile('sgd', loss); model.evaluate(x, y, verbose=0)",
}


def followed(text: str) -> tuple[list[str], Recorder]:
    recorder, kinds = Recorder(losses=True, clock=InferenceClock()), []

    def observe(seams: Seams) -> None:
        recorder(seams)
        seams.answer_called.subscribe(lambda subject, call, *a, **k: (kinds.append(subject[1]), call(*a, **k))[1])

    with Session([], [observe], inference=True) as session:
        exec(compile(BUILT + text, "program", "exec"), {"__name__": "__main__"})
    assert not session.seams.left_out
    return kinds, recorder


@pytest.mark.parametrize(("text", "kinds", "samples"), WAYS.values(), ids=WAYS)
def test_calls_that_answer_are_steps(text: str, kinds: list[str], samples: int) -> None:
    found, recorder = followed(text)
    assert found == kinds and recorder.framework == "keras"
    assert (recorder.clock.steps, recorder.samples) == (len(kinds), samples)
    assert recorder.losses() == [[]] * len(kinds) and recorder.trained() == "4 tensors, 74 scalars"


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_other_calls_are_not(text: str) -> None:
    found, recorder = followed(text)
    assert found == [] and recorder.clock.steps == 0


def test_the_call_that_builds_a_model_is_no_step_and_those_after_it_are() -> None:
    unbuilt = "\nmodel = keras.Sequential([keras.layers.Dense(2)])\nmodel(x[:5])\nmodel(x[:3])\nmodel(x[:3])"
    found, recorder = followed(unbuilt)
    assert len(found) == 3 and (recorder.clock.steps, recorder.samples) == (2, 6)


def test_the_hash_of_where_it_ended_has_weights_and_the_last_answer_in_it() -> None:
    def ended(text: str) -> str:
        return followed(text)[1].state_hash()

    first = ended("model(x[:5])")
    assert first == ended("model(x[:5])")
    assert first != ended("model(x[1:6])")
    assert first != ended("model(x[:5]); model.layers[0].bias.assign_add([1.0] + [0.0] * 7)")


def test_a_program_that_only_asks_is_told_from_one_that_trains_and_asks() -> None:
    def answers(text: str) -> tuple[bool, int]:
        found = AnsweringObserver(lambda: None)
        run(text, found)
        return found.answers, found.calls

    assert answers(HEAD + "model.predict(x, verbose=0); model(x)") == (True, 5)
    trains = FIT.replace("STEPS", "1")
    assert answers(trains + "model.predict(x, verbose=0)") == (False, 0)
    assert answers(trains.replace("model.compile", "model(x); model.compile"))[0] is False


def test_training_after_all_is_told() -> None:
    clock = InferenceClock()
    recorder = Recorder(clock=clock)
    with Session([], [recorder], inference=True):
        text = HEAD + "model(x); model.compile('sgd', loss); model.fit(x, y, verbose=0)"
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
    assert clock.trains


def test_nothing_is_left_behind() -> None:
    import keras
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    holders: tuple[Any, ...] = (keras.Model, TensorFlowTrainer, ArrayDataAdapter)
    before = [dict(vars(holder)) for holder in holders]
    given: dict[str, Any] = {"__name__": "__main__"}
    with Session([("direct_predict", {}), ("graph_call", {})], [Recorder(clock=InferenceClock())], inference=True):
        exec(compile(HEAD + "model.predict(x, verbose=0)", "program", "exec"), given)
        assert [dict(vars(holder)) for holder in holders] != before
    assert [dict(vars(holder)) for holder in holders] == before
    assert not hasattr(given["model"].predict_function, "overdrive_wraps")
    assert given["model"].predict(given["x"], verbose=0).shape == (100, 2)
