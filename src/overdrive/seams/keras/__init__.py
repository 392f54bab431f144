"""Keras's seams: one file each, and one for each backend's own ways, `on_NAME`.

On TensorFlow and JAX most act when a step is traced, and cost nothing after.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from overdrive.seams.hub import Seams
from overdrive.seams.keras.control import (
    BACKENDS,
    backend,
    compute_carefully,
    peak_memory,
    refuse_chance,
    seed,
    shorten_epochs,
    synchronize,
)
from overdrive.seams.patch import Patches, last_first

__all__ = [
    "compute_carefully",
    "enter",
    "make_loss_values",
    "make_step_recorder",
    "peak_memory",
    "refuse_chance",
    "seed",
    "shorten_epochs",
    "synchronize",
]


def make_loss_values(every: int, heard: object = None) -> None:
    """None: a loss is known only inside of the compiled step."""


def make_step_recorder(hub: Seams, losses: bool) -> object:
    from overdrive.seams.keras.step_recorder import AnswerRecorder, StepRecorder

    return AnswerRecorder(hub, losses) if hub.inference else StepRecorder(hub, losses)


def enter(hub: Seams) -> Callable[[], None]:
    """Patch Keras, which is there in full now; returns what takes every patch away again."""
    from overdrive.seams.keras import dropouts, models, optimizers, seeds

    patches = Patches()
    removers: list[Callable[[], None]] = [patches.restore]
    rooms: list[Any] = [seeds, models, optimizers, dropouts]
    if backend() in BACKENDS:  # others (NumPy, OpenVINO) do not train
        rooms.append(importlib.import_module(f"overdrive.seams.keras.on_{backend()}"))
    for seam in rooms:
        removers += seam.enter(hub, patches)
    return last_first(removers)
