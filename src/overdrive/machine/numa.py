"""Which of the cores that this process may use share a memory node or a physical core (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

from overdrive.machine.reading import ROOT, numbers_in, text


def allowed_cores() -> frozenset[int]:
    """The logical cores that this process may run on; none where the system does not tell."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        return frozenset()


def nodes(root: Path = ROOT, allowed: frozenset[int] | None = None) -> list[frozenset[int]]:
    """The allowed cores of each memory node that has any, by the node's number; one node where none is reported."""
    allowed = allowed_cores() if allowed is None else allowed
    folder = root / "sys/devices/system/node"
    found: list[frozenset[int]] = []
    for place in sorted(folder.glob("node[0-9]*"), key=lambda place: int(place.name[4:])):
        if mine := numbers_in(text(place / "cpulist")) & allowed:
            found.append(mine)
    return found or ([allowed] if allowed else [])


def beside(rank: int, ranks: int, all_nodes: list[frozenset[int]]) -> tuple[frozenset[int], int]:
    """The cores of the memory nodes that one of so many ranks has, and how many ranks have these: the nodes are dealt
    out in order, some to each where there are more of them."""

    def first(of: int) -> int:
        return of * len(all_nodes) // ranks

    mine = first(rank)
    cores = frozenset[int]().union(*all_nodes[mine : max(mine + 1, first(rank + 1))])
    return cores, sum(first(each) == mine for each in range(ranks))


def one_a_core(cores: frozenset[int], root: Path = ROOT) -> frozenset[int]:
    """The first of these logical cores on each physical core."""
    first = set()
    for core in cores:
        siblings = numbers_in(text(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
        first.add(min({core} | siblings & cores))
    return frozenset(first)
