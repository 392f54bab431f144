"""Digest logs and replayed calls of Keras programs that only answer: the same is the same, and what differs is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

import numpy as np

from overdrive.core.contract import Contract
from overdrive.core.records import Trace
from overdrive.evidence import agreement, replayed, rounding
from overdrive.evidence.equivalence import judged_exact
from overdrive.evidence.invariants import compared, first_broken
from overdrive.seams.hub import Seams
from overdrive.worker import answering
from overdrive.worker.answering import AnsweringObserver
from overdrive.worker.clock import InferenceClock
from overdrive.worker.observers import make_digests, make_replay
from overdrive.worker.profiling.keras.standing import standing
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from tests.seams.keras.programs import HEAD, run

MODEL = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(600, 8, 8, 1).astype("float32")
model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3, activation="relu"),
    keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dropout(0.5),
    keras.layers.Dense(5, activation="softmax")])
"""
PREDICTS = MODEL + "model.predict(x, batch_size=25, verbose=0)\n"
CALLS = MODEL + "for i in range(0, 600, 25): model(x[i : i + 25])\n"
FED_BACK = MODEL + "at = x[:4]\nfor _ in range(12): at = at * (1 + np.array(model(at))[:, :1, None, None])\n"


def session_of(text: str, observe: Callable[[Seams], None], techniques: Any = ()) -> None:
    import keras

    keras.backend.clear_session()
    with Session(techniques, [observe], inference=True) as session:
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
    assert not session.seams.left_out, session.seams.left_out


def digests_of(text: str, kind: str = "bits", techniques: Any = (), also: Any = None) -> Trace:
    recorder, digests = Recorder(losses=True, clock=InferenceClock()), make_digests("keras", kind, inference=True)

    def observe(seams: Seams) -> None:
        if also:
            also(seams)
        recorder(seams)
        digests(seams)
        seams.between_steps.subscribe(digests.stepped)

    session_of(text, observe, techniques)
    return Trace(
        recorder.clock.steps,
        tuple(map(tuple, recorder.losses())),
        samples=recorder.samples,
        state=recorder.state_hash(),
        digests=tuple(digests.entries),
        inference=True,
    )


@pytest.fixture(scope="module")
def plain() -> Trace:
    return digests_of(PREDICTS)


def test_without_a_pipeline_it_is_the_same_bit_for_bit(plain: Trace) -> None:
    check = judged_exact(plain, digests_of(PREDICTS, techniques=[("direct_predict", {})]))
    assert check.level is Contract.EXACT, check.sentence
    assert check.exact and check.exact.steps == 24


def _answers(change: Callable[[Any], Any]) -> Callable[[Seams], None]:
    """Every answer is another one."""
    return lambda seams: seams.answer_called.subscribe(lambda subject, call, *a, **k: change(call(*a, **k)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size=25", "batch_size=30"),
        ("predict(x,", "predict(x[::-1],"),
        ("predict(x,", "predict(x * np.float32(1.0001),"),
        ("model.predict", "model.layers[0].bias.assign_add([1e-3] * 4)\nmodel.predict"),
    ],
)
def test_what_differs_is_seen(plain: Trace, old: str, new: str) -> None:
    assert old in PREDICTS
    assert judged_exact(plain, digests_of(PREDICTS.replace(old, new))).level is None


def test_another_answer_is_seen(plain: Trace) -> None:
    other = digests_of(PREDICTS, also=_answers(lambda answer: answer * 1.000001))
    assert "outputs" in judged_exact(plain, other).sentence


def test_inputs_that_the_model_made_itself_are_not_held_to_the_others() -> None:
    one, shaken = digests_of(FED_BACK, "inputs"), digests_of(FED_BACK, "shaken")
    other = digests_of(FED_BACK, "inputs", also=_answers(lambda answer: answer * 1.001))
    assert first_broken(compared(one, other, Contract.ROUNDING, shaken)) is None
    assert first_broken(
        compared(one, digests_of(FED_BACK.replace("[:4]", "[1:5]"), "inputs"), Contract.ROUNDING, shaken)
    )


def replay_of(text: str, role: str, steps: tuple[int, ...], folder: Path, also: Any = None) -> Mapping[str, Any]:
    recorder, replay = Recorder(losses=True, clock=InferenceClock()), make_replay("keras", role, steps, folder, True)

    def observe(seams: Seams) -> None:
        if also:
            also(seams)
        recorder(seams)
        replay(seams)

    session_of(text, observe)
    report: Mapping[str, Any] = replay.report()
    return report


@pytest.mark.parametrize("program", [PREDICTS, CALLS, FED_BACK], ids=["predict", "calls", "fed back"])
def test_a_call_with_recorded_inputs_against_fp64(program: str, tmp_path: Path) -> None:
    steps = (2, 3, 5, 8)
    taught = replay_of(program, "reference", steps, tmp_path)
    assert taught["states"] == [2, 3, 5, 8] and not taught["needs"]
    own = replay_of(program, "candidate", steps, tmp_path)
    rows = replayed.rows_of(own)
    assert replayed.usable(rows) is None and own["other_inputs"] == []
    errors = [row.error / row.size for row in rows]
    assert all(0 < each < 1e-6 for each in errors), "the target is fp64's, and no other answer than the model's"
    off = replay_of(program, "candidate", steps, tmp_path, _answers(lambda answer: answer * 1.001))
    assert rounding.judge(rows, rows).holds and not rounding.judge(rows, replayed.rows_of(off)).holds


def test_a_disturbed_call_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    replay_of(CALLS, "reference", (2, 3), tmp_path)
    own = replayed.rows_of(replay_of(CALLS, "candidate", (2, 3), tmp_path))
    moved = replayed.rows_of(replay_of(CALLS, "disturbed", (2, 3), tmp_path))
    assert [each.error for each in own] < [each.error for each in moved]
    check = "\nassert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))\n"
    text = CALLS.replace("for i", "before = model.get_weights()\nfor i", 1) + check
    replay_of(text, "disturbed", (2, 3), tmp_path)


def test_samples_are_compared_one_by_one(tmp_path: Path) -> None:
    steps = tuple(range(1, 25))
    replay_of(PREDICTS, "answers", steps, tmp_path)

    def judged(also: Any = None) -> Any:
        return agreement.judge(replay_of(PREDICTS, "agreement", steps, tmp_path, also))

    assert judged().holds, judged().sentence
    backwards = judged(_answers(lambda answer: answer[:, ::-1]))
    assert backwards.holds is False


def test_what_lies_in_memory_between_two_calls_is_told() -> None:
    """`profile` records it; nothing is trained, so that no optimizer has a state."""
    held: list[dict[str, int]] = []

    def observe(seams: Seams) -> None:
        seams.step_ends.subscribe(lambda stands_in: held.append(standing([stands_in.model()], [stands_in])))

    session_of(CALLS, observe)
    assert held[0]["optimizer state"] == 0 and held[0]["parameters"] == 4 * (9 * 4 + 4 + 4 * 4 + 36 * 4 * 5 + 5)


def test_a_compiled_model_is_waited_for_longer_and_a_loaded_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    now = [100.0]
    monkeypatch.setattr(answering.time, "monotonic", lambda: now[0])

    def told_after(seconds: float, make: Callable[[], Any]) -> bool:
        told: list[int] = []
        with Session([], [AnsweringObserver(lambda: told.append(1))]):
            model = make()
            for _ in range(10):
                model(np.zeros((2, 4), "float32"))
            now[0] += seconds + 1
            model(np.zeros((2, 4), "float32"))
        return bool(told)

    def compiled() -> Any:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        return model

    compiled().save(tmp_path / "saved.keras")
    assert not told_after(answering._SECONDS, compiled) and told_after(answering._WITH_OPTIMIZER, compiled)
    assert told_after(answering._SECONDS, lambda: keras.models.load_model(tmp_path / "saved.keras"))


_BY_HAND = (
    HEAD
    + """
model(x)

DECORATOR
def step():
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    for each, gradient in zip(model.trainable_weights, tape.gradient(value, model.trainable_weights)):
        each.assign_sub(0.1 * gradient)

for _ in range(3):
    step()
    model(x)
"""
)


@pytest.mark.parametrize("decorator", ["@tf.function", ""])
def test_a_program_that_changes_its_weights_itself_does_not_only_answer(decorator: str) -> None:
    """It evaluates in between."""
    observer = AnsweringObserver(lambda: None)
    run(_BY_HAND.replace("DECORATOR", decorator), Recorder(), observer)
    assert observer.trains and not observer.answers
