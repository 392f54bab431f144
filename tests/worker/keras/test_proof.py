"""Digest logs and replayed steps of Keras programs: what is the same is the same, and what differs is seen."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.core.contract import Contract
from overdrive.core.records import Trace
from overdrive.evidence import replayed, rounding
from overdrive.evidence.equivalence import first_difference, judged_exact
from overdrive.evidence.invariants import aligned, compared, first_broken
from overdrive.seams.hub import Seams
from overdrive.worker.observers import make_digests, make_replay
from overdrive.worker.recording import Recorder
from tests.seams.keras.programs import FIT, TAPE, run

PLAIN = FIT.replace("STEPS", "1")


def digests_of(text: str, kind: str = "bits", techniques: Any = ()) -> Trace:
    recorder, digests = Recorder(losses=True), make_digests("keras", kind)

    def observe(seams: Seams) -> None:
        recorder(seams)
        digests(seams)
        seams.between_steps.subscribe(digests.stepped)

    run(text, observe, techniques=techniques)
    losses = tuple(map(tuple, recorder.losses()))
    return Trace(
        recorder.clock.steps,
        losses,
        tuple(recorder.rates),
        state=recorder.state_hash(),
        digests=tuple(digests.entries),
    )


@pytest.fixture(scope="module")
def plain() -> Trace:
    return digests_of(PLAIN)


def test_many_steps_in_a_call_are_the_same_bit_for_bit(plain: Trace) -> None:
    many = digests_of(FIT.replace("STEPS", "3"))
    check = judged_exact(plain, many)
    assert check.level is Contract.EXACT, check.sentence
    assert check.exact and check.exact.steps == 12


def test_blocks_called_again_in_the_backward_pass_are_no_calls_of_the_program() -> None:
    """Here blocks are models, with gradients of their own that are taken there."""
    blocks = """
inputs = inner = keras.Input((6,))
for _ in range(2):
    inner += keras.Sequential([keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(6)])(inner)
model = keras.Model(inputs, keras.layers.Dense(2)(inner))
model.compile("""
    text = PLAIN.replace("model.compile(", blocks, 1)
    perturbed, plain = digests_of(text, "perturbed"), digests_of(text, "inputs")
    again = digests_of(text, "inputs", techniques=[("gradient_checkpointing", {"least": 0.0})])
    assert [len(step) for step in again.losses] == [len(step) for step in plain.losses] == [1] * 12
    assert first_broken(compared(plain, again, Contract.ROUNDING, perturbed)) is None


def test_a_run_that_went_further_within_its_last_call_is_compared_up_to_the_others_end() -> None:
    def trace(steps: int, rests: tuple[int, ...]) -> Trace:
        return Trace(steps, ((1.0,),) * steps, (0.1,) * steps, state=str(steps), rests=rests)

    one, other = aligned(trace(10, ()), trace(12, (4, 8, 12)))
    assert one.steps == other.steps == 10 and first_difference(one, other) is None
    one, other = aligned(trace(10, ()), trace(16, (4, 8, 12, 16)))  # it made more, and not within one call
    assert first_difference(one, other) == "one makes 10 steps, the other 16"


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("model.fit(x, y,", "y[50] = 1 - y[50]\nmodel.fit(x, y,", "batches"),
        ("validation_data=(x[:40]", "validation_data=(x[1:41]", "evaluation data"),
        ("Adam(0.01)", "Adam(0.010001)", "learning rates"),
        ("Adam(0.01)", "Adam(0.01, epsilon=2e-7)", "learning rates"),
        ("Dropout(0.2)", "Dropout(0.21)", "inputs"),
    ],
)
def test_what_differs_is_seen(plain: Trace, old: str, new: str, told: str) -> None:
    assert old in PLAIN
    check = judged_exact(plain, digests_of(PLAIN.replace(old, new)))
    assert check.level is None
    if told != "inputs":  # of a layer inside: seen by what comes out
        assert told in check.sentence


_TWO_ANSWERS = """
inputs = keras.Input((6,))
model = keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)])
model.compile("sgd", [loss, loss], run_eagerly=True)
model.fit(x, [y, 1 - y], batch_size=32, epochs=1, verbose=0)
"""


_GIVEN = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(2)

    def call(self, given):
        if isinstance(given, tf.SparseTensor):
            given = tf.ensure_shape(tf.sparse.to_dense(given), (None, 6))
        elif isinstance(given, tf.RaggedTensor):
            given = given.to_tensor(shape=(None, 6))
        elif given.dtype.is_complex:
            given = tf.math.imag(given)
        return self.inner(given)

model = Net()
model.compile("sgd", loss)
model.fit(tf.data.Dataset.from_tensor_slices((KIND, y)).batch(32), epochs=1, verbose=0)
"""
_KINDS = {
    "ragged": "tf.RaggedTensor.from_tensor(x * SCALE)",
    "sparse": "tf.sparse.from_dense(x * SCALE)",
    "complex": "tf.complex(x, x * SCALE)",
}


@pytest.mark.parametrize("kind", _KINDS)
def test_batches_of_any_kind_of_tensor_are_compared(kind: str) -> None:
    head = PLAIN[: PLAIN.index("model.compile")]
    one, again, other = (
        digests_of(head + _GIVEN.replace("KIND", _KINDS[kind]).replace("SCALE", scale)) for scale in ("1", "1", "2")
    )
    assert one.steps == 4 and [each.samples for each in one.digests] == [32, 32, 32, 4]
    assert one.digests == again.digests and one.digests[0].batches != other.digests[0].batches


def test_labels_of_each_answer_of_an_eager_step_are_its_batch() -> None:
    head = PLAIN[: PLAIN.index("model.compile")]
    one, other = (
        digests_of(head + _TWO_ANSWERS.replace("[y, 1", labels), "inputs") for labels in ("[y, 1", "[1 - y, 1")
    )
    assert one.digests[0].inputs == other.digests[0].inputs
    assert one.digests[0].batches != other.digests[0].batches


def test_a_function_that_evaluates_can_be_saved_while_steps_are_compared(tmp_path: Path) -> None:
    saves = f"""
served = tf.Module()
served.model = model
served.serve = tf.function(lambda images: model(images, training=False))
served.serve(tf.constant(x))
tf.saved_model.save(served, {str(tmp_path)!r}, signatures=served.serve.get_concrete_function(tf.constant(x)))
"""
    found = digests_of(PLAIN.replace("epochs=3", "epochs=1") + saves)
    assert found.steps == 4 and (tmp_path / "saved_model.pb").exists()


def test_what_changes_with_the_parameters_is_the_models_own() -> None:
    text = TAPE.replace("DECORATOR", "@tf.function").replace("step(images, labels)))", "step(images * made, labels)))")
    text = text.replace("seen = []", "seen, made = [], 1.0").replace(
        "    model(images, training=False)", "    made = float(tf.reduce_sum(tf.abs(model(images, training=False))))"
    )
    perturbed, one = digests_of(text, "perturbed"), digests_of(text, "inputs")
    assert one.digests[0].inputs == perturbed.digests[0].inputs
    assert one.digests[1].inputs != perturbed.digests[1].inputs
    assert first_broken(compared(one, perturbed, Contract.ROUNDING, perturbed)) is None


def replay_of(text: str, role: str, steps: tuple[int, ...], folder: Path, *more: Any) -> Mapping[str, Any]:
    recorder, replay = Recorder(losses=True), make_replay("keras", role, steps, folder)
    run(text, recorder, replay, *more)
    report: Mapping[str, Any] = replay.report()
    return report


def test_a_reference_saves_fewer_states_where_all_would_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=0))
    taught = replay_of(PLAIN, "reference", tuple(range(2, 12)), tmp_path)
    assert taught["states"] == [2, 5, 8, 11] and taught["thinned"] and not taught["out_of_reach"]
    assert len(list(tmp_path.glob("state-*"))) == 4
    assert replay_of(PLAIN, "targets", tuple(taught["states"]), tmp_path)["states"] == [2, 5, 8, 11]


@pytest.mark.parametrize("program", [PLAIN, TAPE.replace("DECORATOR", "@tf.function")])
def test_a_step_from_a_saved_state_against_fp64(program: str, tmp_path: Path) -> None:
    steps = (2, 3, 4)
    taught = replay_of(program, "reference", steps, tmp_path)
    assert taught["states"] == [2, 3, 4] and taught["needs"] == "targets"
    assert replay_of(program, "targets", steps, tmp_path)["states"] == [2, 3, 4]
    own = replayed.rows_of(replay_of(program, "candidate", steps, tmp_path))
    assert replayed.usable(own) is None
    error = replayed.relative_error(own)
    assert error is not None and 0 < error < 1e-6  # dropout drew the same
    assert {row.kind for row in own} >= {"gradient", "update", "initial value"}
    off = replayed.rows_of(replay_of(program, "candidate", steps, tmp_path, _slightly_off))
    assert rounding.judge(own, own).holds
    assert not rounding.judge(own, off).holds


_MIXED = (
    PLAIN.replace("model = ", 'keras.config.set_dtype_policy("mixed_bfloat16")\nmodel = ', 1).replace(
        "keras.layers.Dense(2)]", 'keras.layers.Dense(2, dtype="float32")]'
    )
    + '\nkeras.config.set_dtype_policy("float32")\n'
)


def test_a_reference_is_in_fp64_whatever_policy_the_program_sets(tmp_path: Path) -> None:
    """It was in bf16 as well: the original was at no distance from it, and all rounding of a candidate was too much."""
    steps = (2, 3, 4)
    for role in ("reference", "targets"):
        assert replay_of(_MIXED, role, steps, tmp_path)["states"] == [2, 3, 4]
    own = replayed.rows_of(replay_of(_MIXED, "candidate", steps, tmp_path))
    assert replayed.usable(own) is None
    error = replayed.relative_error(own)
    assert error is not None and 5e-4 < error < 0.05  # dropout drew the same, in bf16


def _slightly_off(seams: Seams) -> None:
    """Gradients that are wrong in the fourth digit."""

    def ready() -> None:
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        from overdrive.seams.patch import Patches

        patches, clip = Patches(), BaseOptimizer._clip_gradients
        patches.replace(BaseOptimizer, "_clip_gradients", lambda self, grads: [g * 1.001 for g in clip(self, grads)])
        seams.on_undo(patches.restore)

    seams.framework_ready.subscribe(ready)


def test_in_a_call_of_many_steps_the_first_is_compared(tmp_path: Path) -> None:
    steps = tuple(range(2, 12))
    replay_of(PLAIN, "reference", steps, tmp_path)
    replay_of(PLAIN, "targets", steps, tmp_path)
    report = replay_of(FIT.replace("STEPS", "3"), "candidate", steps, tmp_path)
    assert report["states"] == [4, 5, 8, 9] and report["out_of_reach"] == [2, 3, 6, 7, 10, 11]
    error = replayed.relative_error(replayed.rows_of(report))
    assert error is not None and error < 1e-6


_OWN_RATE = """
class Own(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01

model.compile("""


def test_a_schedule_that_cannot_be_saved_is_compared_all_the_same() -> None:
    text = PLAIN.replace("model.compile(", _OWN_RATE, 1).replace("Adam(0.01)", "Adam(Own())")
    one = digests_of(text)
    assert judged_exact(one, digests_of(text)).level is Contract.EXACT
    other = judged_exact(one, digests_of(text.replace("Adam(Own())", "Adam(Own(), epsilon=2e-7)")))
    assert other.level is None and "learning rates" in other.sentence


_EAGER = TAPE.replace("DECORATOR", "").replace("(step(images, labels))", "(step(images.numpy(), labels.numpy()))")


def test_arrays_of_numpy_that_a_model_is_given_are_compared() -> None:
    norm = _EAGER.replace("keras.layers.Dropout(0.2)", "keras.layers.BatchNormalization(momentum=0.99)")
    one = digests_of(norm)
    for old, new in (("loss =", "x[:25] += 1e-3\nloss ="), ("loss =", "y[3] = 1 - y[3]\nloss =")):
        assert one.digests[0].batches != digests_of(norm.replace(old, new, 1)).digests[0].batches
    other = digests_of(norm.replace("0.99", "0.98"))
    assert one.digests[0].batches == other.digests[0].batches and one.digests[0].buffers != other.digests[0].buffers


def test_a_program_of_many_optimizers_can_be_replayed(tmp_path: Path) -> None:
    many = """
for _ in range(18):
    model.compile(keras.optimizers.SGD(0.01), loss)
    model.fit(x[:32], y[:32], verbose=0)
"""
    replay_of(PLAIN[: PLAIN.index("model.compile")] + many, "reference", (2, 17), tmp_path)
    replay_of(PLAIN[: PLAIN.index("model.compile")] + many, "targets", (2, 17), tmp_path)
