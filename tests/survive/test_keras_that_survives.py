"""Programs that train in Keras on TensorFlow, killed amid an epoch: each ends bit for bit as one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.survive.killed import survive, told_of_going_on

pytest.importorskip("keras")
pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.survive, pytest.mark.fault("killed"), pytest.mark.timeout(600)]

BEGIN = """
import os, signal
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf

class Dies(keras.callbacks.Callback):
    # After so many batches, of all calls of `fit` together.
    batches = 0
    def on_train_batch_end(self, batch, logs=None):
        Dies.batches += 1
        if Dies.batches == int(os.environ.get("DIES", 0)):
            os.kill(os.getpid(), int(os.environ.get("BY", signal.SIGKILL)))

def told(model):
    for weight in model.get_weights():
        print(weight.shape, weight.astype("float64").sum().hex())

rng = np.random.default_rng(1)
x, y = rng.normal(size=(96, 8)).astype("float32"), rng.integers(0, 3, 96)
"""

ARRAYS = (
    BEGIN
    + """
model = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x, y, batch_size=8, epochs=3, validation_data=(x[:30], y[:30]), callbacks=[Dies()], verbose=2)
print(history.history)
told(model)
print(model.predict(x, verbose=0).astype("float64").sum().hex(), model.evaluate(x, y, verbose=0))
"""
)


def test_fit_on_arrays_with_dropout_and_validation_goes_on_amid_an_epoch(tmp_path: Path) -> None:
    told_of_going_on(tmp_path, ARRAYS.replace("verbose=2", "verbose=0"), dies=17)


def test_data_sets_callbacks_and_files_of_weights_end_as_uninterrupted(tmp_path: Path) -> None:
    """No seed is set: data are shuffled and turned by chance, four steps are one call, files are written meanwhile."""
    told_of_going_on(tmp_path, CALLBACKS, dies=11)


CALLBACKS = (
    BEGIN
    + """
def turned(a, b):
    return a + tf.random.normal(tf.shape(a), stddev=0.1), b

data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).map(turned).batch(8).prefetch(2)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.BatchNormalization(),
                          keras.layers.ReLU(), keras.layers.GaussianNoise(0.1), keras.layers.Dense(3)])
schedule = keras.optimizers.schedules.CosineDecay(0.05, 100)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
              metrics=["accuracy"], steps_per_execution=4)
calls = [
    Dies(), keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True, verbose=1),
    keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.5, verbose=1),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
    keras.callbacks.ModelCheckpoint("at-{epoch}.weights.h5", save_weights_only=True),
    keras.callbacks.CSVLogger("log.csv"), keras.callbacks.BackupAndRestore("backup"),
    keras.callbacks.LambdaCallback(on_epoch_end=lambda n, logs: print(n, logs, model.optimizer.iterations.numpy())),
]
history = model.fit(data, epochs=9, validation_data=(x[:30], y[:30]), callbacks=calls, verbose=0)
print(history.history)
told(model)
model.load_weights("at-2.weights.h5")
told(model)
told(keras.models.load_model("best.keras"))
os.remove("best.keras")  # it has the time in it
"""
)

ADVERSARIES = (
    BEGIN
    + """
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.judge = keras.Sequential([keras.layers.Dense(16), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        self.maker = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(8)])
        self.seeds = keras.random.SeedGenerator(5)
        self.a, self.b = keras.metrics.Mean(name="a"), keras.metrics.Mean(name="b")
    def compile(self, one, other):
        super().compile()
        self.one, self.other = one, other
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
    @property
    def metrics(self):
        return [self.a, self.b]
    def train_step(self, data):
        n = tf.shape(data)[0]
        noise = keras.random.normal((n, 4), seed=self.seeds)
        both = tf.concat([self.maker(noise), data], 0)
        right = tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0)
        with tf.GradientTape() as tape:
            lost = self.loss_fn(right, self.judge(both, training=True))
        self.one.apply_gradients(zip(tape.gradient(lost, self.judge.trainable_weights), self.judge.trainable_weights))
        with tf.GradientTape() as tape:
            made = self.loss_fn(tf.zeros((n, 1)), self.judge(self.maker(noise), training=True))
        self.other.apply_gradients(zip(tape.gradient(made, self.maker.trainable_weights), self.maker.trainable_weights))
        self.a.update_state(lost); self.b.update_state(made)
        return {"a": self.a.result(), "b": self.b.result()}

class Shows(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        shown = self.model.maker(np.ones((2, 4), "float32"))
        print(epoch, logs, shown.numpy().sum(), keras.random.normal((1,)).numpy())

keras.utils.set_random_seed(3)
gan = Gan()
gan.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
gan.fit(x, batch_size=20, epochs=2, callbacks=[Dies(), Shows()], verbose=0)
gan.fit(x, batch_size=20, epochs=2, callbacks=[Dies(), Shows()], verbose=0)
other = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
other.compile("rmsprop", "mse")
for at in range(0, 90, 10):
    print(other.train_on_batch(x[at : at + 10], x[at : at + 10, :1]), other.predict(x[:3], verbose=0)[0])
    Dies.on_train_batch_end(None, None)
told(gan.maker), told(gan.judge), told(other)
"""
)


@pytest.mark.parametrize("dies", [7, 13, 26])
def test_models_with_steps_of_their_own_go_on_whichever_is_trained(dies: int, tmp_path: Path) -> None:
    told_of_going_on(tmp_path, ADVERSARIES, dies=dies)


# What cannot be skipped, and why.
REFUSED = {
    "draws": (
        "model.add(keras.layers.Lambda(lambda a: a + tf.random.normal(tf.shape(a))))",
        "its steps draw random numbers whose state is in no variable",
    ),
    "eager": ("model.run_eagerly = True", "its model runs eagerly"),
    "of python": (
        "plain = lambda a: a + tf.ensure_shape(tf.numpy_function(lambda b: b, [a], 'float32'), a.shape)\n"
        "model.add(keras.layers.Lambda(plain))",
        "its steps call a function of Python",
    ),
    "loop": (
        "tape = tf.GradientTape()\nwith tape: lost = tf.reduce_sum(model(x) ** 2)\n"
        "model.optimizer.apply_gradients(zip(tape.gradient(lost, model.trainable_weights), model.trainable_weights))",
        "it applies an optimizer in a loop of its own",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_in_no_snapshot_is_told_at_once_and_begins_from_its_start(what: str, tmp_path: Path) -> None:
    change, why = REFUSED[what]
    text = ARRAYS.replace("history = model.fit", f"{change}\nhistory = model.fit").replace("verbose=2", "verbose=0")
    first = survive(tmp_path, "killed", text, dies=17)
    assert first.returncode == -signal.SIGKILL and why in first.stderr, first.stderr
    whole = survive(tmp_path, "whole", text)
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "begun from its start again" in second.stderr, second.stderr
    assert first.stdout + second.stdout == whole.stdout


def test_a_signal_takes_a_snapshot_at_the_end_of_the_step(tmp_path: Path) -> None:
    text = ARRAYS.replace("verbose=2", "verbose=0")
    first = survive(tmp_path, "killed", text, dies=17, by=signal.SIGTERM, every="1h")
    assert first.returncode == 128 + signal.SIGTERM and "goes on after step" in first.stderr, first.stderr
    second = survive(tmp_path, "killed", text)
    assert second.returncode == 0 and "gone on after step" in second.stderr, second.stderr
    assert first.stdout + second.stdout == survive(tmp_path, "whole", text).stdout
