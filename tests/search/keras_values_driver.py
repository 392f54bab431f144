"""Prints losses of a Keras program whose values are set at its seams, and of one that is edited to have them."""

from __future__ import annotations

import json
from typing import Any

from overdrive.core.hyperparameters import Hyperparameters, Seen
from overdrive.core.json_data import from_json
from overdrive.seams.hub import Seams
from overdrive.worker.hyperparameter_watch import HyperparameterWatch
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session

_PROGRAM = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.rand(100, 6).astype("float32")
y = (x.sum(1) > 3).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu")])
model.add(keras.layers.Dropout(0.25))
model.add(keras.layers.Dense(1))
model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.02), "mse")
halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False, callbacks=[halved])
"""


def _losses(text: str, wanted: Hyperparameters) -> tuple[list[float], Seen]:
    recorder, watch = Recorder(losses=True), HyperparameterWatch(wanted, lambda: None)

    def observe(seams: Seams) -> None:
        recorder(seams)
        watch(seams)

    with Session((), [observe]) as session:
        exec(compile(text, "program", "exec"), {"__name__": "__main__"})
    assert not session.seams.left_out, session.seams.left_out
    return [each for step in recorder.losses() for each in step], from_json(Seen, watch.report())


def main() -> None:
    others: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.3, "batch_size": 25, "p": 0.5}
    edited = _PROGRAM.replace("0.01", "0.05").replace("0.02", "0.3").replace("32,", "25,", 1).replace("0.25", "0.5")
    places = _losses(_PROGRAM, Hyperparameters(look=True))[1].places
    values = {each.key: others[each.name] for each in places if each.name in others}
    varied, seen = _losses(_PROGRAM, Hyperparameters(values, losses=True))
    print(
        json.dumps(
            {"set": len(values), "varied": varied, "told": seen.loss, "edited": _losses(edited, Hyperparameters())[0]}
        )
    )


if __name__ == "__main__":
    main()
