"""What each framework's package in `trials` offers a trial: who watches, who keeps its diary, who takes its lessons.

Nothing here imports a framework, and neither do the packages' own `__init__` files.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from overdrive.facts import Facts
from overdrive.recording import Recorder
from overdrive.seams.hub import Seams


class Probe(Protocol):
    """Takes a step apart while a profile is on, and looks at what the program is made of."""

    batch_hashes: list[str]  # of the first steps

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def start_profile(self) -> None: ...
    def end_profile(self) -> None: ...
    def facts(self, recorder: Recorder, costs: bool = False) -> Facts: ...


class Diary(Protocol):
    """What went into every training step and what came out (see `evidence.equivalence` for its entries)."""

    @property
    def entries(self) -> list[dict[str, Any]]: ...

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self) -> None:
        """One training step or more are complete since the last call."""


class Lesson(Protocol):
    """A part in a teacher-forced comparison (see `trials.order.Part`)."""

    def __call__(self, seams: Seams) -> None: ...
    def report(self) -> Mapping[str, Any]: ...


class Observers(Protocol):
    """The module `overdrive.trials.NAME`. Diaries and lessons are made when the framework is there."""

    def make_probe(self, hashed_steps: int) -> Probe: ...
    def make_diary(self, kind: str) -> Diary: ...
    def make_lesson(self, role: str, steps: Sequence[int], folder: Path) -> Lesson: ...


def observers_of(name: str) -> Observers:
    return cast(Observers, importlib.import_module(f"overdrive.trials.{name}"))
