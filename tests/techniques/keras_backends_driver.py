"""Puts Keras techniques to work on the backend that KERAS_BACKEND names; prints as JSON what came of each.

Run by `test_keras`: Keras has one backend in a process.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

X = np.random.default_rng(0).normal(size=(90, 6, 6, 1)).astype("float32")
Y = (X.mean((1, 2, 3)) > 0).astype("int64")


class Watch(keras.callbacks.Callback):
    """Acts on epochs only."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.steps.append(self.model.steps_per_execution)


def fits() -> dict[str, Any]:
    """Several fits of one model, with what lies between them."""
    keras.utils.set_random_seed(5)
    made = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2, seed=3),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    made.compile("adam", "sparse_categorical_crossentropy")
    watch, seen = Watch(), []
    given: dict[str, Any] = {"batch_size": 8, "verbose": 0, "callbacks": [watch]}
    for _ in range(2):
        history = made.fit(X, Y, epochs=2, validation_data=(X[:20], Y[:20]), **given).history
        seen += [*history["loss"], *history["val_loss"], made.evaluate(X, Y, verbose=0)]
        seen.append(float(made.train_on_batch(X[:8], Y[:8])))
    return {
        "losses": [float(each) for each in seen],
        "steps": watch.steps,
        "left": made.steps_per_execution,
        "iterations": int(made.optimizer.iterations),
        "jit": bool(made.jit_compile),
        "compute": [layer.compute_dtype for layer in made.layers],
        "threads": sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None,
    }


def under(plan: list[Any], program: Callable[[], dict[str, Any]] = fits) -> dict[str, Any]:
    recorder = Recorder(losses=True)
    session = Session(plan, [recorder])
    with session:
        result = program()
    return {**result, "left_out": session.seams.left_out, "recorded": len(recorder.losses())}


def main() -> None:
    plans: dict[str, list[Any]] = {
        "plain": [],
        "fours": [("steps_per_execution", {"steps": 4})],
        "bf16": [("mixed_precision", {})],
        "other backend": [("keras_backend", {"backend": os.environ["OTHER"]})],
        "threads": [("threads", {"count": 2})],
    }
    plans["jit"] = [("jit_compile", {})]
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        # Steps are traced and run as they are: what the compiler makes of them takes half a minute.
        torch.compile = functools.partial(torch.compile, backend="eager")
    plans["after all"] = []
    os.environ["KERAS_BACKEND"] = os.environ["OTHER"]  # as if it had been set too late
    print(json.dumps({name: under(plan) for name, plan in plans.items()}))


if __name__ == "__main__":
    main()
