"""Learning rate and batch size of Keras programs are found where they stand, and what is set there arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow (pip install overdrive[keras])")
pytest.importorskip("keras", reason="needs Keras (pip install overdrive[keras])")

from overdrive.core.hyperparameters import DROPOUT, Hyperparameters, Seen, ValuePlace
from overdrive.core.json_data import from_json
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.seams.hub import Seams
from overdrive.search.conduct import SearchRequest, curve_of
from overdrive.search.goal import Goal
from overdrive.search.listing import listing
from overdrive.search.parameters import Parameter
from overdrive.search.search import CannotSearch
from overdrive.trials.pool import TrialPool
from overdrive.worker.hyperparameter_watch import HyperparameterWatch
from overdrive.worker.recording import Recorder
from tests.keras_driver import told_by
from tests.seams.keras.programs import HEAD, run

FIT = HEAD + "model.compile(OPTIMIZER, loss)\nmodel.fit(x, y, epochs=2, verbose=0, shuffle=False)\n"
SETS = """
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(20).prefetch(1)
other = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)
"""
LOOP = f"""{HEAD}{SETS}
optimizer = keras.optimizers.AdamW(3e-3)
model.build((None, 6))
for images, labels in other:
    model(images)
for images, labels in train:
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    optimizer.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
"""
PY_DATASET = f"""{HEAD}
class Batches(keras.utils.PyDataset):
    def __init__(self, size):
        super().__init__()
        self.size = size
    def __len__(self):
        return len(x) // self.size
    def __getitem__(self, i):
        return x[i * self.size : (i + 1) * self.size], y[i * self.size : (i + 1) * self.size]
model.compile("sgd", loss)
model.fit(Batches(24), epochs=2, verbose=0)
"""
SCHEDULE = "keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9)"


def watched(text: str, values: dict[str, Any] | None = None, **wanted: Any) -> tuple[Seen, Recorder, dict[str, Any]]:
    """What was seen, what was recorded, and the program's globals."""
    recorder = Recorder(losses=True)
    watch = HyperparameterWatch(
        Hyperparameters(values or {}, look=values is None and not wanted, **wanted), lambda: None
    )

    def observe(seams: Seams) -> None:
        recorder(seams)
        watch(seams)

    found = run(text, observe)
    return from_json(Seen, watch.report()), recorder, found


def losses_of(recorder: Recorder) -> list[float]:
    return [each for step in recorder.losses() for each in step]


def places_of(text: str) -> dict[str, ValuePlace]:
    return {each.name: each for each in watched(text)[0].places}


def test_an_optimizer_that_is_named_and_a_batch_size_that_is_not_have_a_place() -> None:
    found = places_of(FIT.replace("OPTIMIZER", "'adam'"))
    assert (found["lr"].value, found["lr"].of) == (0.001, "Adam") and found["lr"].where.startswith("program:")
    assert (found["beta1"].value, found["beta2"].value) == (0.9, 0.999)
    assert (found["batch_size"].value, found["batch_size"].of) == (32, "fit()")


def test_the_batch_size_of_a_data_set_is_that_of_the_one_that_is_trained_on() -> None:
    fitted = places_of(f"{HEAD}{SETS}model.compile('sgd', loss)\nmodel.fit(train, verbose=0, validation_data=other)\n")
    looped = places_of(LOOP)
    for found in (fitted, looped):
        assert (found["batch_size"].value, found["batch_size"].of) == (20, "tf.data.Dataset")
        assert found["batch_size"].where == fitted["batch_size"].where
    assert (looped["lr"].value, looped["weight_decay"].value) == (0.003, 0.004)


def test_what_is_set_there_arrives() -> None:
    plain = FIT.replace("OPTIMIZER", "keras.optimizers.SGD(0.01, momentum=0.5)")
    found = places_of(plain)
    values = {found["lr"].key: 0.05, found["momentum"].key: 0.9, found["batch_size"].key: 50}
    _, recorder, made = watched(plain, values)
    assert recorder.clock.steps == 4 and recorder.samples == 200
    assert made["model"].optimizer.learning_rate.numpy() == pytest.approx(0.01)  # the program's own
    assert made["model"].optimizer.momentum == 0.9
    edited = plain.replace("0.01, momentum=0.5", "0.05, momentum=0.9").replace("verbose=0", "verbose=0, batch_size=50")
    assert losses_of(recorder) == pytest.approx(losses_of(watched(edited)[1]), rel=1e-4)
    _, grouped, _ = watched(LOOP, {places_of(LOOP)["batch_size"].key: 50})
    assert (grouped.clock.steps, grouped.samples) == (2, 100)


@pytest.mark.parametrize("how", ["a schedule", "a callback"])
def test_what_the_program_does_to_the_rate_goes_on_at_another_height(how: str) -> None:
    plain = FIT.replace("OPTIMIZER", SCHEDULE if how == "a schedule" else "keras.optimizers.SGD(0.1)")
    if how == "a callback":
        halved = "keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)"
        plain = plain.replace("verbose=0", f"verbose=0, callbacks=[{halved}]")
    place = places_of(plain)["lr"]
    assert place.value == 0.1
    _, recorder, _ = watched(plain, {place.key: 0.4})
    edited = plain.replace("0.1", "0.4")
    assert losses_of(recorder) == pytest.approx(losses_of(watched(edited)[1]), rel=1e-4)


DROPOUTS = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(64, 4, 6).astype("float32")
y = (x.sum((1, 2)) > 12).astype("float32")
inputs = keras.Input((4, 6))
z = keras.layers.SpatialDropout1D(0.2)(inputs)
z = keras.layers.MultiHeadAttention(2, 3, dropout=0.2)(z, z)
z = keras.layers.MultiHeadAttention(2, 3)(z, z)
z = keras.layers.LSTM(5, dropout=0.3)(z)
z = keras.layers.Dense(1)(keras.layers.Dropout(0.3, name="last")(z))
model = keras.Model(inputs, z)
model.compile("sgd", "mse")
model.fit(x, y, epochs=2, verbose=0, shuffle=False)
"""


def test_dropout_rates_are_found_and_set_as_layers_are_made() -> None:
    """Those of one rate together, of attention and recurrent layers, too; layers that drop nothing have none."""
    found = {each.value: each for each in watched(DROPOUTS)[0].places if each.kind == DROPOUT}
    assert {value: each.of for value, each in found.items()} == {0.2: "2 layers", 0.3: "2 layers"}
    _, recorder, made = watched(DROPOUTS, {found[0.2].key: 0.5, found[0.3].key: 0.1})
    assert made["model"].get_layer("last").get_config()["rate"] == 0.1
    edited = DROPOUTS.replace("0.3", "0.1").replace("0.2", "0.5")
    assert losses_of(recorder) == pytest.approx(losses_of(watched(edited)[1]), rel=1e-4)
    assert losses_of(recorder) != pytest.approx(losses_of(watched(DROPOUTS)[1]), rel=1e-4)


def test_a_program_with_a_wrong_dropout_fails_with_its_own_error() -> None:
    wrong = "import keras\nkeras.layers.Dropout(FAULT)\n"
    with pytest.raises(ValueError, match="rate"):
        watched(wrong.replace("FAULT", "1.5"))
    with pytest.raises(TypeError, match="rate"):
        watched(wrong.replace("FAULT", "rates=0.2"))


def test_a_schedule_of_the_programs_own_is_told_by_the_first_rate_that_it_gives() -> None:
    warmup = """
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.01 * keras.ops.minimum(1.0, keras.ops.cast(step, "float32") / 10)
"""
    text = FIT.replace("model.compile", f"{warmup}model.compile").replace(
        "OPTIMIZER", "keras.optimizers.Adam(Warmup())"
    )
    assert places_of(text)["lr"].value == pytest.approx(0.001)


def test_a_rate_that_grows_over_the_steps_hides_no_rate_of_the_program() -> None:
    plain = FIT.replace("OPTIMIZER", SCHEDULE).replace("epochs=2", "epochs=3")
    _, recorder, _ = watched(plain, ramp=(1.0, 100.0, 12))
    grows = [1 * 100 ** (step / 11) * 0.1 for step in range(12)]
    assert recorder.rates == pytest.approx(grows, rel=1e-3)


def test_losses_are_told_as_they_come() -> None:
    seen, recorder, _ = watched(FIT.replace("OPTIMIZER", "'sgd'"), losses=True)
    losses = losses_of(recorder)
    assert seen.loss == pytest.approx(sum(losses) / len(losses))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_is_set_arrives_on_other_backends(backend: str) -> None:
    found = told_by("tests.search.keras_values_driver", backend)
    assert found["set"] == 4 and len(found["varied"]) == 8
    assert found["varied"] == pytest.approx(found["edited"], rel=1e-4)
    assert found["told"] == pytest.approx(sum(found["varied"]) / 8)


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with TrialPool() as made:
        yield made


def test_what_decides_a_value_of_keras_is_found_in_trials(
    pool: TrialPool, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = PY_DATASET.replace('"sgd"', "keras.optimizers.Adam(RATE)")
    found = listed(pool, script(f"RATE = 0.02\n{text}"))
    assert found["lr"].place.startswith("constant RATE") and found["lr"].tried
    assert "learning rate of Adam" in found["lr"].effect
    assert found["batch-size"].default == 24 and "number in Batches()" in found["batch-size"].place


def test_a_batch_curve_is_refused_at_once(
    pool: TrialPool, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measures the noise of gradients, which Keras has inside of a compiled step."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    metric = Metric()
    request = SearchRequest(
        Program(str(script(FIT.replace("OPTIMIZER", "'sgd'")))), (), metric, Goal.parse("best", metric), 60.0
    )
    with pytest.raises(CannotSearch, match="PyTorch's optimizers only"):
        curve_of(request, pool, lambda words: pytest.fail(words))


def listed(pool: TrialPool, path: Path) -> dict[str, Parameter]:
    return {each.name: each for each in listing(pool, Program(str(path))).parameters if each.told}
