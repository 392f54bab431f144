"""Keras's observers of a trial; see `trials.observers` for what they are to offer.

`on_NAME` is what diaries and lessons write with: within TensorFlow's graphs, or on the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_probe(hashed_steps: int) -> Any:
    from overdrive.trials.keras.probe import Probe

    return Probe(hashed_steps)


def make_diary(kind: str) -> Any:
    from overdrive.trials.keras.diary import Diary

    return Diary(kind)


def make_lesson(role: str, steps: Sequence[int], folder: Path) -> Any:
    from overdrive.trials.keras.lesson import CarefulReference, Pupil, Reference, Teacher

    kinds = {"pupil": Pupil, "reference": Reference, "careful reference": CarefulReference}
    return kinds.get(role, Teacher)(steps, folder)


def pen() -> Any:
    """The module of that name for Keras's backend, which must be known by now."""
    from overdrive.seams.keras.control import backend

    name = "on_tensorflow" if backend() == "tensorflow" else "on_host"
    return importlib.import_module(f"overdrive.trials.keras.{name}")
