"""Puts the Keras techniques to work in one process, and prints as JSON what came of each. Run by `test_keras`."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow")

import keras
import numpy as np
import tensorflow as tf

from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

X = np.random.default_rng(0).normal(size=(90, 6, 6, 1)).astype("float32")
Y = (X.mean((1, 2, 3)) > 0).astype("int64")
# Batches of one pass over the data after the other: fewer than the first, as many, one more (after which Keras ends an
# epoch by itself), and still more.
LENGTHS = [[5, 3, 5, 6, 9, 8, 5], [8, 8, 7, 12, 9, 10, 4], [7, 8, 12, 7], [3, 9, 9]]


class Watch(keras.callbacks.Callback):
    """Acts on epochs only."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.iterations: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.steps.append(self.model.steps_per_execution)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.iterations.append(int(self.model.optimizer.iterations))


class Count(keras.callbacks.Callback):
    """Acts on batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1


def model(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    made = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    made.compile("adam", "sparse_categorical_crossentropy", **options)
    return made


def losses(history: Any) -> list[float]:
    return [*history.history["loss"], *history.history.get("val_loss", [])]


def fits() -> dict[str, Any]:
    """Several fits of one model, with what lies between them."""
    watch, made, seen = Watch(), model(), []
    given: dict[str, Any] = {"batch_size": 8, "verbose": 0, "callbacks": [watch]}
    seen += losses(made.fit(X, Y, epochs=2, validation_data=(X[:20], Y[:20]), **given))
    seen += [made.evaluate(X, Y, verbose=0), float(made.train_on_batch(X[:8], Y[:8]))]
    seen += losses(made.fit(X, Y, **given))
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat()
    seen += losses(made.fit(endless, steps_per_epoch=6, epochs=2, verbose=0, callbacks=[watch]))
    counts = Count()
    seen += losses(made.fit(X, Y, batch_size=8, verbose=0, callbacks=[counts]))
    made.compile("sgd", "sparse_categorical_crossentropy")
    seen += losses(made.fit(X, Y, **given))
    return {
        "losses": seen,
        "steps": watch.steps,
        "batches": counts.batches,
        "iterations": int(made.optimizer.iterations),
        "left": made.steps_per_execution,
    }


def batches_of_chance(lengths: list[int], **options: Any) -> dict[str, Any]:
    """Of unknown length, shuffled: the n-th pass has so many batches, the last of them as many as all that follow."""
    made, watch, passes = model(), Watch(), iter(lengths)

    def samples() -> Iterator[Any]:
        for number in range(next(passes, lengths[-1]) * 9):
            yield X[number % 90], Y[number % 90]

    kinds = (tf.TensorSpec((6, 6, 1), tf.float32), tf.TensorSpec((), tf.int64))
    data = tf.data.Dataset.from_generator(samples, output_signature=kinds).shuffle(40, seed=4).batch(9)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        history = made.fit(data, epochs=len(lengths), verbose=2, callbacks=[watch], **options)
    bars = re.findall(r"^(\d+/\d+) - ", shown.getvalue(), re.MULTILINE)
    return {"losses": losses(history), "iterations": watch.iterations, "steps": watch.steps, "bars": bars}


def counted() -> dict[str, Any]:
    counts = Count()
    return {"losses": losses(model().fit(X, Y, batch_size=8, verbose=0, callbacks=[counts])), "batches": counts.batches}


class Asks(keras.callbacks.Callback):
    """Looks at its model at each epoch's end: at all samples, and at some batches of more than there are."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(9)
        predicted = self.model.predict(X, batch_size=9, verbose=0)
        self.found += [predicted.shape[0], float(np.abs(predicted).sum())]
        self.found += [self.model.evaluate(batches, steps=3, verbose=0)]
        self.found += [len(self.model.predict(batches.map(lambda x, y: x), steps=3, verbose=0))]


def asked() -> dict[str, Any]:
    """A model that is asked before its fit and, by a callback, in its midst; and fits that Keras itself cuts short."""
    watch, asks, made = Watch(), Asks(), model()
    seen: list[Any] = [float(made.predict(X, batch_size=9, verbose=0).sum())]
    given: dict[str, Any] = {"batch_size": 9, "epochs": 2, "verbose": 0, "validation_data": (X[:40], Y[:40])}
    seen += losses(made.fit(X, Y, callbacks=[asks, watch], **given))
    seen += [*asks.found, made.evaluate(X, Y, verbose=0), len(made.predict(X, batch_size=9, verbose=0))]
    keras.config.set_max_steps_per_epoch(6)
    try:
        seen += losses(made.fit(X, Y, **given))
    finally:
        keras.config.set_max_steps_per_epoch(None)
    return {"losses": seen, "steps": watch.steps, "iterations": int(made.optimizer.iterations)}


def one_after_another() -> dict[str, Any]:
    """Models that are made and given up: how many of them live on."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    for _ in range(4):
        made = model()
        made.fit(X, Y, batch_size=30, verbose=0)
        alive.update((made, made.optimizer))
        del made
        keras.backend.clear_session()
        gc.collect()
    return {"losses": [], "alive": sorted(type(each).__name__ for each in alive)}


def short() -> dict[str, Any]:
    made = model()
    history = made.fit(X, Y, batch_size=30, epochs=2, verbose=0)
    return {
        "losses": losses(history),
        "compute": [layer.compute_dtype for layer in made.layers],
        "weights": sorted({str(each.dtype) for each in made.trainable_variables}),
        "predicted": str(made.predict(X[:2], verbose=0).dtype),
        "optimizer": type(made.optimizer).__name__,
        "jit": made.jit_compile,
    }


class Steps(keras.Model):
    """With a step of its own, that does not scale its loss."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            value = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(value, self.trainable_variables), self.trainable_variables)
        return {"loss": value}


def own_step() -> dict[str, Any]:
    keras.utils.set_random_seed(5)
    given = keras.Input((6, 6, 1))
    inside = keras.layers.Dense(8, activation="relu")(keras.layers.Flatten()(given))
    made = Steps(given, keras.layers.Dense(2, activation="softmax")(inside))
    made.compile("sgd", "sparse_categorical_crossentropy")
    made.fit(X, Y, batch_size=30, epochs=2, verbose=0)
    return {"losses": [float(np.abs(each).sum()) for each in made.get_weights()]}


class Residual(keras.layers.Layer):
    """Adds what a layer within it makes to what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(36, activation="relu")

    def call(self, x: Any) -> Any:
        return x + self.inner(x)


def nested() -> dict[str, Any]:
    """A functional model with a layer of layers, and another model, in it; two outputs."""
    keras.utils.set_random_seed(5)
    given = keras.Input((6, 6, 1))
    inside = Residual()(keras.layers.Flatten()(given))
    head = keras.Sequential([keras.Input((36,)), keras.layers.Dense(4), keras.layers.Dense(2, activation="softmax")])
    made = keras.Model(given, [head(inside), Residual()(inside)])
    made.compile("adam", ["sparse_categorical_crossentropy", "mse"])
    made.fit(X, [Y, X.reshape(90, 36)], batch_size=30, verbose=0)
    return {
        "compute": [layer.compute_dtype for layer in made._flatten_layers(include_self=False) if layer.weights],
        "predicted": [str(each.dtype) for each in made.predict(X[:2], verbose=0)],
    }


class Block(keras.layers.Layer):
    """With all that a second call could disturb: random numbers, moving means, a layer that asks whether it trains."""

    def __init__(self, adds_loss: bool = False) -> None:
        super().__init__()
        self.wide = keras.layers.Dense(144, activation="gelu")
        self.drop = keras.layers.Dropout(0.3)
        self.norm = keras.layers.BatchNormalization()
        self.back = keras.layers.Dense(36)
        self.adds_loss = adds_loss

    def call(self, x: Any) -> Any:
        inner = self.norm(self.drop(self.wide(x)))
        if self.adds_loss:
            self.add_loss(keras.ops.mean(inner) ** 2)
        return x + self.back(inner)


def deep(adds_loss: bool = False, policy: str = "float32", **options: Any) -> dict[str, Any]:
    """Blocks one after the other, in training and out of it, and how often a step's graph multiplies matrices."""
    keras.utils.set_random_seed(5)
    keras.config.set_dtype_policy(policy)
    try:
        given = keras.Input((6, 6, 1))
        inside = keras.layers.Flatten()(given)
        for _ in range(3):
            inside = Block(adds_loss)(inside)
        made = keras.Model(given, keras.layers.Dense(2, activation="softmax", dtype="float32")(inside))
    finally:
        keras.config.set_dtype_policy("float32")
    made.compile("adam", "sparse_categorical_crossentropy", **options)
    history = made.fit(X, Y, batch_size=30, epochs=2, verbose=0, validation_data=(X[:20], Y[:20]), shuffle=False)
    step = tf.function(made.train_step).get_concrete_function((tf.constant(X[:30]), tf.constant(Y[:30])))
    products = sum(each.type.endswith("MatMul") for each in step.graph.get_operations())
    return {
        "losses": losses(history),
        "products": products,
        "weights": [float(np.abs(each.numpy().astype("float64")).sum()) for each in made.weights],
        "placed": sum("call" in vars(layer) for layer in made._flatten_layers()),
    }


def own_choice() -> dict[str, Any]:
    return {"losses": losses(model(jit_compile=False, steps_per_execution=2).fit(X, Y, batch_size=30, verbose=0))}


def own_policy() -> dict[str, Any]:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return short()
    finally:
        keras.config.set_dtype_policy("float32")


def pipeline(chance: bool = False) -> dict[str, Any]:
    seed = tf.random.Generator.from_seed(3)

    def mapped(x: Any, y: Any) -> Any:
        return (x * 2.0 + (seed.normal([]) if chance else 0.0), y)

    return piped(tf.data.Dataset.from_tensor_slices((X, Y)).map(mapped), lambda epoch: None)


def pipeline_of_files() -> dict[str, Any]:
    """... that the program writes anew after each epoch."""
    with tempfile.TemporaryDirectory() as folder:

        def write(epoch: int) -> None:
            for number, image in enumerate(X):
                with open(f"{folder}/{number}", "wb") as file:
                    file.write((image * (epoch + 2)).tobytes())

        def read(path: Any, label: Any) -> Any:
            return tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), (6, 6, 1)), label

        write(-1)
        names = [f"{folder}/{number}" for number in range(len(X))]
        return piped(tf.data.Dataset.from_tensor_slices((names, Y)).map(read), write)


def piped(samples: Any, after_epoch: Callable[[int], None]) -> dict[str, Any]:
    data = samples.shuffle(90, seed=4).batch(9)
    made = model()
    ends = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: after_epoch(epoch))
    history = made.fit(data, epochs=3, verbose=0, callbacks=[ends])
    kinds, each = [], data
    while hasattr(each, "_input_dataset"):
        each = each._input_dataset
        kinds.append(type(each).__name__)
    return {"losses": losses(history), "cached": any("Cache" in kind for kind in kinds)}


def of_chance() -> dict[str, Any]:
    results: dict[str, Any] = {}
    fours: list[Any] = [("steps_per_execution", {"steps": 4})]
    for lengths in LENGTHS:
        for name, plan in (("plain", []), ("in fours", fours)):
            results[f"{lengths} {name}"] = under(plan, functools.partial(batches_of_chance, lengths))
    results["cut plain"] = under([], lambda: batches_of_chance([18, 18], steps_per_epoch=10))
    results["cut in fours"] = under(fours, lambda: batches_of_chance([18, 18], steps_per_epoch=10))
    return results


def under(plan: list[Any], program: Callable[[], dict[str, Any]], keep: bool = True) -> dict[str, Any]:
    """`keep`: as a trial does; `overdrive run` keeps no losses."""
    recorder = Recorder(losses=keep)
    session = Session(plan, [recorder])
    with session:
        result = program()
    sent = sorted({len(step) for step in recorder.losses()})
    return {**result, "left_out": session.seams.left_out, "losses a step": sent}


def main() -> None:
    print(
        json.dumps(
            {
                "fits": under([], fits),
                "fits in fours": under([("steps_per_execution", {"steps": 4})], fits),
                **of_chance(),
                "counted": under([("steps_per_execution", {"steps": 4})], counted),
                "asked": under([], asked),
                "asked in fours": under([("steps_per_execution", {"steps": 4})], asked),
                "one after another, alone": one_after_another(),
                "one after another": under([("steps_per_execution", {"steps": 3})], one_after_another, keep=False),
                "short": under([], short),
                "xla": under([("jit_compile", {})], short),
                "bf16": under([("mixed_precision", {})], short),
                "fp16": under([("mixed_precision", {"dtype": "float16"})], short),
                "own step": under([], own_step),
                "own step in fp16": under([("mixed_precision", {"dtype": "float16"})], own_step),
                "nested": under([("mixed_precision", {})], nested),
                "own policy": under([("mixed_precision", {})], own_policy),
                "own choice": under([("jit_compile", {}), ("steps_per_execution", {})], own_choice),
                "pipeline": under([], pipeline),
                "pipeline cached": under([("data_pipeline", {})], pipeline),
                "pipeline too large": under([("data_pipeline", {"memory": 0.0})], pipeline),
                "pipeline with chance": under([("data_pipeline", {})], lambda: pipeline(chance=True)),
                "files": under([], pipeline_of_files),
                "files cached": under([("data_pipeline", {})], pipeline_of_files),
                "deep": under([], deep),
                "deep again": under([("gradient_checkpointing", {})], deep),
                "deep in 16 bits": under([], lambda: deep(policy="mixed_bfloat16")),
                "deep again in 16 bits": under([("gradient_checkpointing", {})], lambda: deep(policy="mixed_bfloat16")),
                "deep with losses": under([], lambda: deep(adds_loss=True)),
                "deep again with losses": under([("gradient_checkpointing", {})], lambda: deep(adds_loss=True)),
                "deep again eagerly": under([("gradient_checkpointing", {})], lambda: deep(run_eagerly=True)),
                "shallow again": under([("gradient_checkpointing", {})], short),
                "after all": under([], short),
            }
        )
    )


if __name__ == "__main__":
    main()
