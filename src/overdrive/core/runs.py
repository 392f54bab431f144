"""A row of sizes cut into runs that are as equal as can be."""

from __future__ import annotations

from collections.abc import Sequence


def equal_runs(sizes: Sequence[int], count: int) -> list[int] | None:
    """Of each of these the number of its run: `count` runs, none empty, the largest as small as can be.

    None where there are fewer than `count`.
    """
    if len(sizes) < count:
        return None
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if _needed(sizes, middle) <= count:
            high = middle
        else:
            low = middle + 1
    found, held, run = [], 0, 0
    for place, size in enumerate(sizes):
        if place and (held + size > low or len(sizes) - place == count - 1 - run):
            run, held = run + 1, 0
        found.append(run)
        held += size
    return found


def _needed(sizes: Sequence[int], most: int) -> int:
    """Runs of no more than `most`."""
    runs, held = 1, 0
    for size in sizes:
        if held + size > most:
            runs, held = runs + 1, 0
        held += size
    return runs
