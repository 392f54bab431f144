"""That ranks meet, on hosts that have alike what they must: seen before they exchange anything else."""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from overdrive.ranks.arriving import START, CannotMeet, missing_of
from overdrive.ranks.monitor import note_told
from overdrive.version import __version__


def compare(store: Any, rank: int, run: str = "") -> None:
    """
    Args:
        run: what the launcher calls it; "" where it does not say.

    Raises:
        CannotMeet: this rank is of another run than rank 0, has something otherwise, or rank 0 does not come.
    """
    mine = _facts()
    if rank == 0:
        store.set("run", run)
        store.set("alike", json.dumps(mine))
        return
    if missing_of(store, ["alike"]):
        raise CannotMeet(f"rank 0 did not come within {START.total_seconds():.0f} s, for which rank {rank} waited")
    if (firsts_run := store.get("run").decode()) != run:  # which is none of that one's business
        raise CannotMeet(
            f"rank {rank} on {socket.gethostname()} is of {run or 'a run without a name'}, and rank 0 at this address "
            f"of {firsts_run or 'one without a name'}: set MASTER_PORT to a free port"
        )
    firsts = json.loads(store.get("alike"))
    names = [name for name in firsts if firsts[name] != mine.get(name)]
    if names:
        note_told(store)
        told = ", ".join(f"{name} {mine.get(name)} (rank 0 has {firsts[name]})" for name in names)
        raise CannotMeet(f"rank {rank} on {socket.gethostname()} has {told}: all hosts need the same")


def _facts() -> dict[str, str]:
    major, minor, _ = platform.python_version_tuple()
    found = {"Python": f"{major}.{minor}", "PyTorch": torch.__version__.split("+")[0], "Overdrive": __version__}
    if program := _program():
        found[f"another {program.name}:"] = hashlib.sha256(program.read_bytes()).hexdigest()[:8]
    return found


def _program() -> Path | None:
    """The script, which the command line names: this process's own, or, before it starts, Overdrive's."""
    named = (Path(each) for each in sys.argv if each.endswith(".py"))
    return next((each for each in named if each.name != "__main__.py" and each.is_file()), None)
