"""Keras's observers of a trial; see `worker.observers` for what they are to offer.

`on_NAME` is what digest logs and state replays write with: within TensorFlow's graphs, or on the host.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_probe(hashed_steps: int) -> Any:
    from overdrive.worker.keras.probe import Probe

    return Probe(hashed_steps)


def make_digests(kind: str) -> Any:
    from overdrive.worker.keras.digests import DigestLog

    return DigestLog(kind)


def make_replay(role: str, steps: Sequence[int], folder: Path) -> Any:
    from overdrive.worker.keras.replay import Candidate, CarefulTargets, Reference, Targets

    kinds = {"candidate": Candidate, "targets": Targets, "careful targets": CarefulTargets}
    return kinds.get(role, Reference)(steps, folder)


def ops() -> Any:
    """The module of that name for Keras's backend, which must be known by now."""
    from overdrive.seams.keras.control import backend

    name = "on_tensorflow" if backend() == "tensorflow" else "on_host"
    return importlib.import_module(f"overdrive.worker.keras.{name}")
