"""Runs small programs on the backend that KERAS_BACKEND names, plain and watched, and prints as JSON what was seen.

Run by `test_backends`: Keras has one backend in a process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from overdrive.core.json_data import to_json
from overdrive.core.records import Trace
from overdrive.evidence import replayed, rounding
from overdrive.evidence.equivalence import judged_exact
from overdrive.seams.frameworks import MODULES
from overdrive.seams.hub import Seams
from overdrive.worker.observers import make_digests, make_probe, make_replay
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from tests.seams.keras import programs
from tests.seams.keras.programs import run

BACKEND = os.environ["KERAS_BACKEND"]
HEAD = programs.HEAD.replace(", tensorflow as tf", "")
FIT = programs.FIT.replace(programs.HEAD, HEAD).replace("STEPS", "1")
ON_BATCH = programs.ON_BATCH.replace(programs.HEAD, HEAD)

CUSTOM = {
    "jax": """
import jax
class Own(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def call(self, x, training=False):
        return self.inner(x, training=training)
    def judged(self, trained, others, x, y):
        answers, others = self.stateless_call(trained, others, x, training=True)
        return self.compute_loss(x, y, answers), others
    def train_step(self, state, data):
        trained, others, kept, metrics = state
        find = jax.value_and_grad(self.judged, has_aux=True)
        (value, others), grads = find(trained, others, *data[:2])
        trained, kept = self.optimizer.stateless_apply(kept, grads, trained)
        return {"loss": value}, (trained, others, kept, metrics)
""",
    "torch": """
import torch
class Own(keras.Model):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def call(self, x, training=False):
        return self.inner(x, training=training)
    def train_step(self, data):
        x, y, _ = data
        self.zero_grad()
        value = self.compute_loss(x, y, self(x, training=True))
        value.backward()
        with torch.no_grad():
            self.optimizer.apply([each.value.grad for each in self.trainable_weights], self.trainable_weights)
        return {"loss": value}
""",
}
OWN_STEP = (
    HEAD
    + CUSTOM[BACKEND]
    + """
model = Own(model)
model.compile("sgd", loss)
seen = [model.train_on_batch(x[i : i + 20], y[i : i + 20]) for i in range(0, 100, 20)]
"""
)
# JAX: on one model alone, that is fitted, compiled again and fitted.
SET_STEP = (
    HEAD
    + CUSTOM["jax"]
    + """
import types
def step(model, state, data):
    logs, state = Own.train_step(model, state, data)
    return {"loss": 2 * logs["loss"]}, state
model = Own(model)
model.train_step = before = types.MethodType(step, model)
seen = []
for _ in range(2):
    model.compile("sgd", loss)
    seen += model.fit(x, y, batch_size=50, shuffle=False, verbose=0).history["loss"]
own = model.__dict__.get("train_step") is before
"""
)
OWN_LOOP = (
    HEAD
    + """
import torch
optimizer = keras.optimizers.SGD(0.1)
seen = []
for i in range(0, 100, 25):
    model.zero_grad()
    value = loss(torch.tensor(y[i : i + 25]), model(torch.tensor(x[i : i + 25]), training=True))
    value.backward()
    weights = model.trainable_weights
    with torch.no_grad():
        optimizer.apply([each.value.grad for each in weights], weights)
    seen.append(float(value))
    model(torch.tensor(x), training=False)
"""
)


def weights(found: dict[str, Any]) -> list[Any]:
    return [np.asarray(each).tolist() for each in found["model"].get_weights()]


def watched(text: str, *observers: Callable[[Seams], None]) -> dict[str, Any]:
    """The program under a recorder, beside the program itself."""
    recorder = Recorder(losses=True)
    plain, found = run_plain(text), run(text, recorder, *observers)
    return {
        "alike": weights(plain) == weights(found),
        "steps": recorder.clock.steps,
        "samples": recorder.samples,
        "losses": recorder.losses(),
        "rates": recorder.rates,
        "seen": [float(each) for each in found.get("seen", ())],
        "hash": recorder.parameters_hash(),
        "framework": recorder.framework,
        "trained": recorder.trained(),
    }


def run_plain(text: str) -> dict[str, Any]:
    keras.backend.clear_session()
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "program", "exec"), found)
    return found


def set_step() -> dict[str, Any]:
    plain, found = run_plain(SET_STEP), run(SET_STEP, Recorder(losses=True))
    return {"own": found["own"], "seen": [plain["seen"], found["seen"]], "alike": weights(plain) == weights(found)}


def standing_still() -> dict[str, Any]:
    """Its state is read at each rest, as a trial does before it stops."""
    states: list[str] = []
    recorder = Recorder(losses=True)

    def observe(seams: Seams) -> None:
        recorder(seams)
        seams.between_steps.subscribe(lambda: states.append(recorder.state_hash()))

    found = run(FIT, observe)
    return {"states": states, "alike": weights(found) == weights(run_plain(FIT)), "last": recorder.state_hash()}


def digests_of(text: str, kind: str = "bits") -> Trace:
    recorder, digests = Recorder(losses=True), make_digests("keras", kind)

    def observe(seams: Seams) -> None:
        recorder(seams)
        digests(seams)
        seams.between_steps.subscribe(digests.stepped)

    run(text, observe)
    losses = tuple(map(tuple, recorder.losses()))
    return Trace(
        recorder.clock.steps,
        losses,
        tuple(recorder.rates),
        state=recorder.state_hash(),
        digests=tuple(digests.entries),
    )


def digests() -> dict[str, Any]:
    plain, again = digests_of(FIT), digests_of(FIT)
    told = {"itself": judged_exact(plain, again).level is not None, "entries": len(plain.digests)}
    changes = {
        "batches": ("model.fit(x, y,", "y[50] = 1 - y[50]\nmodel.fit(x, y,"),
        "evaluation data": ("validation_data=(x[:40]", "validation_data=(x[1:41]"),
        "learning rates": ("Adam(0.01)", "Adam(0.010001)"),
        "dropout": ("Dropout(0.2)", "Dropout(0.21)"),
    }
    for name, (old, new) in changes.items():
        assert old in FIT
        check = judged_exact(plain, digests_of(FIT.replace(old, new)))
        told[name] = "the same" if check.level else check.sentence
    perturbed = digests_of(FIT, "perturbed")
    told["perturbed"] = perturbed.losses != plain.losses and perturbed.digests[0].inputs == plain.digests[0].inputs
    return told


def replays() -> dict[str, Any]:
    steps = (2, 3, 4)
    with tempfile.TemporaryDirectory() as folder:

        def part(role: str, *more: Any) -> Any:
            replay = make_replay("keras", role, steps, Path(folder))
            run(FIT, Recorder(losses=True), replay, *more)
            return replay.report()

        taught, target = part("reference"), part("targets")
        own = replayed.rows_of(part("candidate"))
        off = replayed.rows_of(part("candidate", _slightly_off))
        return {
            "states": [taught["states"], target["states"]],
            "usable": replayed.usable(own),
            "error": replayed.relative_error(own),
            "kinds": sorted({row.kind for row in own}),
            "own holds": rounding.judge(own, own).holds,
            "off holds": rounding.judge(own, off).holds,
        }


def _slightly_off(seams: Seams) -> None:
    """Gradients that are wrong in the fourth digit."""
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    from overdrive.seams.patch import Patches

    patches, clip = Patches(), BaseOptimizer._clip_gradients
    patches.replace(BaseOptimizer, "_clip_gradients", lambda self, grads: [g * 1.001 for g in clip(self, grads)])
    seams.on_undo(patches.restore)


def as_in_a_trial() -> dict[str, Any]:
    """A model that is built by shapes alone, and looked at by all frameworks' probes, as in every trial."""
    recorder, probes = Recorder(losses=True), {name: make_probe(name, 8) for name in MODULES}
    text = FIT.replace("Sequential([", "Sequential([keras.Input((6,)), ")
    run(text, recorder, *probes.values())
    facts = probes["keras"].facts(recorder, costs=True)
    return {"steps": recorder.clock.steps, "facts": to_json(facts)}


def left_behind() -> bool:
    from keras.src.losses.loss import Loss
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.trainers.epoch_iterator import EpochIterator

    trainer = next(each for each in keras.Model.__mro__ if "fit" in vars(each))
    holders = (keras.Model, trainer, BaseOptimizer, Loss, EpochIterator)
    before = [dict(vars(holder)) for holder in holders]
    inside: list[bool] = []

    def observe(seams: Seams) -> None:
        Recorder()(seams)
        seams.step_ends.subscribe(lambda _: inside.append(vars(trainer) != before[1]))

    found = run(ON_BATCH, observe)
    assert inside == [True] * 5
    functions = [getattr(found["model"], f"{kind}_function") for kind in ("train", "test", "predict")]
    return functions != [None] * 3 or [dict(vars(holder)) for holder in holders] != before


def parts_of(text: str) -> dict[str, Any]:
    """How often each part of a step ran, and what of that was left behind."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    trainer = next(each for each in keras.Model.__mro__ if "fit" in vars(each))
    iterator = next(iter(EpochIterator.__subclasses__()))
    holders = (keras.Model, trainer, EpochIterator, iterator)
    before = [dict(vars(holder)) for holder in holders]
    ran: Counter[str] = Counter()

    def part(kind: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        ran[kind] += 1
        return call(*args, **kwargs)

    def observe(seams: Seams) -> None:
        Recorder()(seams)
        seams.part_run.subscribe(part)
        seams.step_called.subscribe(
            lambda model, function, *given: ran.update(["compiled" * hasattr(function, "lower")])
        )

    found = run(text, observe)
    alike = weights(found) == weights(run_plain(text))
    return {"ran": ran, "alike": alike, "left": [dict(vars(holder)) for holder in holders] != before}


def made_before() -> int:
    """A model whose train function was there before the session began: steps seen in it."""
    found = run_plain(ON_BATCH)
    recorder = Recorder()
    with Session([], [recorder]):
        found["model"].train_on_batch(found["x"][:20], found["y"][:20])
    return recorder.clock.steps


def main() -> None:
    results: dict[str, Any] = {
        "fit": watched(FIT),
        "on batch": watched(ON_BATCH),
        "own step": watched(OWN_STEP),
        "standing still": standing_still(),
        "digests": digests(),
        "as in a trial": as_in_a_trial(),
        "left behind": left_behind(),
        "parts": parts_of(FIT),
        "made before": made_before(),
        "replays": replays(),
    }
    if BACKEND == "torch":
        results["own loop"] = watched(OWN_LOOP)
        results["parts of a loop"] = parts_of(OWN_LOOP)
    else:
        results["set step"] = set_step()
        results["three in a call"] = watched(FIT.replace("steps_per_execution=1", "steps_per_execution=3"))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
