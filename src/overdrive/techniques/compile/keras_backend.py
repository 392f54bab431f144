"""Technique `keras_backend`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import CannotInstall, Knob, Settings, Technique

if TYPE_CHECKING:
    from overdrive.seams.hub import Handle, Seams

_BACKENDS = ("tensorflow", "jax", "torch")


class KerasBackend(Technique):
    """Runs a Keras program on another of Keras's backends: TensorFlow, JAX or PyTorch.

    What it does: sets `KERAS_BACKEND` before the process starts. The same model is built, compiled and fitted by the
    same calls, and another framework computes it. Only ever tried when named: it is another training, though of the
    same model with the same settings.

    When it helps: which backend is fastest depends on the model and the machine. JAX compiles every step by XLA, and
    TensorFlow runs graphs of oneDNN's kernels. A CNN of one layer of 8 filters on images of 12 x 12, batch 32, took
    6.3 times less time a step on JAX than on TensorFlow (5.2 to 7.6; two cores of an AMD EPYC, busy with other work),
    and more on PyTorch.

    When it hurts: a program that calls TensorFlow (or another framework) by itself fails on other backends, and the
    tuner leaves them out with that error as the reason; so does one that chooses its backend itself, or one that is
    not installed. A plan with it is for the program as it was tuned: calls of `tf` added later will fail.

    What it watches: nothing: the backend is chosen before the process starts, and nothing is proved of it. So whatever
    the program does with it later escapes.

    Contract: open. Initial weights, dropout and the order of shuffled samples are drawn by another generator, so that a
    run begins elsewhere and ends elsewhere, even under one seed; nothing here proves that it ends as well.

    Source: https://keras.io/getting_started/#configuring-your-backend
    """

    name = "keras_backend"
    frameworks = ("keras",)
    contract = Contract.OPEN
    targets = ("data", "forward", "backward", "optimizer", "other")
    compare_all = True
    expected_saving = 0.5
    replaces_variables = True  # who sets the backend tunes for another
    order = 2  # what is tried after it runs on the new backend
    knobs = (Knob("backend", "jax", "what computes the model", choices=_BACKENDS),)

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        return [{"backend": each} for each in _BACKENDS if each != facts.backend]

    def environment(self, settings: Settings) -> dict[str, str]:
        name = str(settings["backend"])
        return {"KERAS_BACKEND": name} if _is_installed(name) else {}  # without it, Keras would not start

    def install(self, seams: Seams, settings: Settings) -> Handle:
        name = str(settings["backend"])
        if not _is_installed(name):
            raise CannotInstall(f"{name} is not installed")

        def look() -> None:
            import keras

            if keras.backend.backend() != name:
                raise CannotInstall(f"the program chooses Keras's backend itself: {keras.backend.backend()}")

        seams.framework_ready.subscribe(look)
        return seams.handle()


def _is_installed(name: str) -> bool:
    return find_spec(name) is not None
