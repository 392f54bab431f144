"""Which of the cores that this process may use share a memory node or a physical core (Linux)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ROOT = Path("/")


def allowed_cores() -> frozenset[int]:
    """The logical cores that this process may run on; none where the system does not tell."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        return frozenset()


def nodes(root: Path = _ROOT, allowed: frozenset[int] | None = None) -> list[frozenset[int]]:
    """The allowed cores of each memory node that has any, by the node's number; one node where nothing is told."""
    allowed = allowed_cores() if allowed is None else allowed
    folder = root / "sys/devices/system/node"
    found: list[frozenset[int]] = []
    for place in sorted(folder.glob("node[0-9]*"), key=lambda place: int(place.name[4:])):
        with contextlib.suppress(OSError, ValueError):
            if mine := _cores((place / "cpulist").read_text()) & allowed:
                found.append(mine)
    return found or ([allowed] if allowed else [])


def one_a_core(cores: frozenset[int], root: Path = _ROOT) -> frozenset[int]:
    """Of these logical cores, the first of each physical one."""
    first = set()
    for core in cores:
        siblings = {core}
        place = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        with contextlib.suppress(OSError, ValueError):
            siblings |= _cores(place.read_text()) & cores
        first.add(min(siblings))
    return frozenset(first)


def _cores(text: str) -> frozenset[int]:
    """Numbers from a list such as "0-3,8,10-11"."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
