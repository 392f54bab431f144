"""Keras's observers of a trial; see `trials.observers` for what they are to offer."""

from __future__ import annotations

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
