"""Small Keras programs as people write them, and how to run one as a session does, in the tests' own process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.worker.session import Session

HEAD = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
x = np.random.rand(100, 6).astype("float32")
y = (x.sum(1) > 3).astype("int32")
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
FIT = (
    HEAD
    + """
model.compile(keras.optimizers.Adam(0.01), loss, steps_per_execution=STEPS)
model.fit(x, y, batch_size=32, epochs=3, verbose=0, validation_data=(x[:40], y[:40]))
"""
)
ON_BATCH = (
    HEAD
    + """
model.compile("sgd", loss)
seen = [model.train_on_batch(x[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]
"""
)
TAPE = (
    HEAD
    + """
optimizer = keras.optimizers.SGD(0.1)
seen = []

DECORATOR
def step(images, labels):
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return value

for images, labels in tf.data.Dataset.from_tensor_slices((x, y)).batch(25):
    seen.append(float(step(images, labels)))
    model(images, training=False)
"""
)
TWO = (
    HEAD
    + """
first, second = keras.layers.Dense(4), keras.layers.Dense(1)
first.build((None, 6)), second.build((None, 4))
one, other = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)

@tf.function
def step(images):
    for layers, optimizer in (([first], one), ([second], other)):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(second(first(images)) ** 2)
        variables = [each for layer in layers for each in layer.trainable_variables]
        optimizer.apply(tape.gradient(value, variables), variables)

for _ in range(6):
    step(tf.constant(x))
"""
)


def run(text: str, *observers: Callable[[Seams], None], techniques: Any = ()) -> dict[str, Any]:
    """The program's globals when it is over."""
    import keras

    keras.backend.clear_session()  # names of layers begin anew, as in a new process
    found: dict[str, Any] = {"__name__": "__main__"}
    with Session(techniques, list(observers)) as session:
        exec(compile(text, "program", "exec"), found)
    assert not session.seams.left_out, session.seams.left_out
    gc.collect()
    return found
