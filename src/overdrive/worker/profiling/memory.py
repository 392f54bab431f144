"""What fills the memory over a step: every allocation by when it was made and how long it lived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CATEGORIES = ("parameters", "gradients", "optimizer state", "activations", "batches", "temporary")
_POINTS = 160  # of the curve
_LEAST_BYTES = 1024


def categories(
    allocations: Sequence[tuple[int, int, int]],
    phases: Sequence[tuple[int, int, str]],
    window: tuple[int, int],
    places: Mapping[int, str],
) -> dict[str, list[tuple[int, int]]]:
    """Changes by category: (time, bytes). Made in forward and alive when it ends: an activation; made in backward and
    alive when the optimizer begins: a gradient; made in the optimizer and never freed: its state; made while
    the program waits for data: a batch; all else is temporary. `places`: category by address, of what is there before.
    """
    ends = sorted((start, end, name) for start, end, name in phases if name in ("forward", "backward", "optimizer"))
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in CATEGORIES}
    living: dict[int, tuple[int, int]] = {}
    before = dict(places)
    for time, address, size in allocations:
        if not window[0] <= time <= window[1]:
            continue
        if size > 0:
            living[address] = (time, size)
        elif address in living:
            made, made_size = living.pop(address)
            changes = found[_category(made, time, phases, ends)]
            changes += [(made, made_size), (time, -made_size)]
        elif address in before:
            found[before.pop(address)].append((time, size))
    for made, made_size in living.values():
        found[_category(made, None, phases, ends)].append((made, made_size))
    return found


def _category(
    made: int, freed: int | None, phases: Sequence[tuple[int, int, str]], ends: Sequence[tuple[int, int, str]]
) -> str:
    inner = [each for each in phases if each[0] <= made < each[1]]
    _, end, name = min(inner, key=lambda each: each[1] - each[0], default=(0, made, "between"))
    if freed is not None and freed <= end:
        return "temporary"
    if name == "data":
        return "batches"
    if name == "forward":
        return "activations"
    if name == "backward":
        later = next((start for start, _, each in ends if each == "optimizer" and start >= made), None)
        return "gradients" if freed is None or (later is not None and freed > later) else "temporary"
    if name == "optimizer":
        return "optimizer state" if freed is None else "temporary"
    backward = next(((start, stop) for start, stop, each in ends if each == "backward" and start >= made), None)
    if name == "between" and backward and (freed is None or freed > backward[0]):
        return "activations"  # of the loss
    return "temporary"


def over_the_step(
    changes: dict[str, list[tuple[int, int]]], standing: dict[str, int], window: tuple[int, int]
) -> dict[str, Any]:
    """A curve of bytes by category, and what there is of each at the peak. `standing`: there before the window."""
    times = sorted({time for each in changes.values() for time, _ in each})
    ordered = {name: sorted(each) for name, each in changes.items()}
    places = dict.fromkeys(CATEGORIES, 0)
    now = {name: standing.get(name, 0) for name in CATEGORIES}
    rows: list[tuple[int, dict[str, int]]] = [(window[0], dict(now))]
    for time in times:
        for name in CATEGORIES:
            while places[name] < len(ordered[name]) and ordered[name][places[name]][0] <= time:
                now[name] = max(0, now[name] + ordered[name][places[name]][1])
                places[name] += 1
        rows.append((time, dict(now)))
    peak_at, peak = max(rows, key=lambda row: sum(row[1].values()))
    length = max(1, window[1] - window[0])
    groups: dict[int, tuple[int, dict[str, int]]] = {}
    for time, row in rows:  # the highest of each slice of time, so that no peak is lost
        place = min(_POINTS - 1, (time - window[0]) * _POINTS // length)
        if place not in groups or sum(row.values()) > sum(groups[place][1].values()):
            groups[place] = (time, row)
    return {
        "categories": list(CATEGORIES),
        "curve": [
            {"at": (time - window[0]) / length, "bytes": [row[name] for name in CATEGORIES]}
            for _, (time, row) in sorted(groups.items())
        ],
        "peak_at": (peak_at - window[0]) / length,
        "peak": {name: size for name, size in peak.items() if size >= _LEAST_BYTES},
    }
