"""PyTorch's observers of a trial; see `worker.observers` for what they are to offer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def make_probe(hashed_steps: int) -> Any:
    from overdrive.worker.torch.probe import Probe

    return Probe(hashed_steps)


def make_digests(kind: str) -> Any:
    from overdrive.worker.torch.digests import DigestLog

    return DigestLog(kind)


def make_replay(role: str, steps: Sequence[int], folder: Path) -> Any:
    from overdrive.worker.torch.replay import Candidate, Reference

    if role == "candidate":
        return Candidate(steps, folder)
    return Reference(steps, folder, in_double=role == "reference")
