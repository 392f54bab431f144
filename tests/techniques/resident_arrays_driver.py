"""Fits models with `resident_arrays` on the backend that KERAS_BACKEND names; prints as JSON what came of each.

Run by `data/test_resident_arrays` with the word "cpu", where the main memory stands in for that of a GPU, and by
`gpu/test_keras`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import keras
import numpy as np

from overdrive.seams.keras.control import gpus
from overdrive.techniques.data.resident_arrays import keras_arrays
from overdrive.techniques.data.resident_arrays import technique as resident_arrays
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

BACKEND = os.environ["KERAS_BACKEND"]
X = np.random.default_rng(0).normal(size=(90, 6))  # fp64, which Keras makes fp32 of
Y = (X.mean(1) > 0).astype("int32")
made: list[Any] = []


def fits(steps: int = 1) -> dict[str, Any]:
    """With all that changes what a batch is: weights, validation data, orders, an epoch that ends early."""
    keras.utils.set_random_seed(5)
    given = keras.Input((6,), name="given")
    inside = keras.layers.Dropout(0.2, seed=3)(keras.layers.Dense(4, activation="relu")(given))
    model = keras.Model({"given": given}, keras.layers.Dense(2)(inside))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, steps_per_execution=steps)
    seen: list[float] = []
    for options in (
        {"epochs": 2, "validation_data": ({"given": X[:20]}, Y[:20]), "class_weight": {0: 1.0, 1: 2.0}},
        {"epochs": 2, "shuffle": "batch"},
        {"shuffle": False, "steps_per_epoch": 6},
    ):
        history = model.fit({"given": X}, Y, batch_size=8, verbose=0, **options).history
        seen += [*history["loss"], *history.get("val_loss", [])]
    return {"losses": [*seen, model.evaluate({"given": X}, Y, verbose=0)]}


def of_a_generator() -> dict[str, Any]:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batches = ((X[i : i + 9], Y[i : i + 9]) for i in range(0, 90, 9))
    return {"losses": model.fit(batches, verbose=0).history["loss"]}


def under(plan: list[Any], program: Any = fits, *given: Any) -> dict[str, Any]:
    made.clear()
    recorder = Recorder(losses=True)
    with Session(plan, [recorder]) as session:
        result = program(*given)
    left_out = session.seams.left_out
    return {**result, "left_out": left_out, "made": len(made), "recorded": recorder.losses()}


def main_memory() -> tuple[Any, int]:
    if BACKEND == "jax":
        return sys.modules["jax"].devices("cpu")[0], 1 << 20
    return {"tensorflow": "/CPU:0", "torch": "cpu"}[BACKEND], 1 << 20


def main() -> None:
    hold: list[Any] = [("resident_arrays", {})]
    results = {"gpus": gpus(), "plain": under([])}
    if not gpus():
        results["without a GPU"] = under(hold)
    make = keras_arrays.HeldArrays.__init__

    def making(self: Any, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    keras_arrays.HeldArrays.__init__ = making
    if sys.argv[1:] == ["cpu"]:
        resident_arrays.place = main_memory
    elif not gpus():
        print(json.dumps(results))
        return
    results["held"] = under(hold)
    results["places"] = sorted({str(each.device) for held in made for each in held._arrays})
    results["generator"] = under(hold, of_a_generator)
    if BACKEND != "torch":
        results["plain in threes"], results["held in threes"] = under([], fits, 3), under(hold, fits, 3)
    device, _ = resident_arrays.place()
    resident_arrays.place = lambda: (device, 1000)
    results["too large"] = under(hold)
    results["after all"] = under([])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
