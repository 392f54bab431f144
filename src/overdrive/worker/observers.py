"""What each framework's package in `worker` offers a trial: its observer, its digest log and its state replay.

Nothing here imports a framework, and neither do the packages' own `__init__` files.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from overdrive.core.facts import Facts
from overdrive.seams.hub import Seams
from overdrive.worker.recording import Recorder


class Probe(Protocol):
    """Takes a step apart while a profile is on, and looks at what the program is made of."""

    batch_hashes: list[str]  # of the first steps

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def start_profile(self) -> None: ...
    def end_profile(self) -> None: ...
    def facts(self, recorder: Recorder, costs: bool = False) -> Facts: ...


class DigestLog(Protocol):
    """What went into every training step and what came out (see `evidence.equivalence` for its entries)."""

    @property
    def entries(self) -> list[dict[str, Any]]: ...

    def __call__(self, seams: Seams) -> None: ...
    def stepped(self) -> None:
        """One training step or more are complete since the last call."""


class Replay(Protocol):
    """A part in a state replay (see `core.records.ReplayRole`)."""

    def __call__(self, seams: Seams) -> None: ...
    def report(self) -> Mapping[str, Any]: ...


class Observers(Protocol):
    """The module `overdrive.worker.NAME`. Digest logs and state replays are made when the framework is there."""

    def make_probe(self, hashed_steps: int) -> Probe: ...
    def make_digests(self, kind: str) -> DigestLog: ...
    def make_replay(self, role: str, steps: Sequence[int], folder: Path) -> Replay: ...


def observers_of(name: str) -> Observers:
    return cast(Observers, importlib.import_module(f"overdrive.worker.{name}"))
