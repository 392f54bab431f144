"""PyTorch's observers of a trial; see `trials.observers` for what they are to offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_probe(hashed_steps: int) -> Any:
    from overdrive.trials.torch.probe import Probe

    return Probe(hashed_steps)


def make_diary(kind: str) -> Any:
    from overdrive.trials.torch.diary import Diary

    return Diary(kind)


def make_lesson(role: str, steps: Sequence[int], folder: Path) -> Any:
    from overdrive.trials.torch.lesson import Pupil, Teacher

    if role == "pupil":
        return Pupil(steps, folder)
    return Teacher(steps, folder, in_double=role == "teacher")
