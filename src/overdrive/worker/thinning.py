"""The limit on the disk that the saved states of a state replay fill."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

_FEWEST_STATES = 4
_MOST_BYTES = 4e9  # for all states and references of one reference run ...
_SHARE_OF_DISK = 0.25  # ... and never more than this share of what is free


def thinned(steps: Iterable[int], state_bytes: int, folder: Path, rare: Collection[int] = ()) -> set[int]:
    """The steps, or as many of them as the disk has room for: evenly spaced ones, up to half of them of the `rare`."""
    ordered = sorted(steps)
    room = min(_MOST_BYTES, _SHARE_OF_DISK * shutil.disk_usage(folder).free)
    fit = max(_FEWEST_STATES, int(room // max(1, 5 * state_bytes)))  # reference: 4 times in fp64
    if fit >= len(ordered):
        return set(ordered)
    kept = _evenly([step for step in ordered if step in rare], fit // 2)
    return kept | _evenly([step for step in ordered if step not in kept], fit - len(kept))


def _evenly(steps: Sequence[int], count: int) -> set[int]:
    """So many of them, or all."""
    if count >= len(steps):
        return set(steps)
    return {steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)}
