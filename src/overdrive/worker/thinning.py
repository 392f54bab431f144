"""The limit on the disk that the saved states of a state replay fill."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_FEWEST_STATES = 4
_MOST_BYTES = 4e9  # for all states and references of one reference run ...
_SHARE_OF_DISK = 0.25  # ... and never more than this share of what is free


def thinned(steps: Iterable[int], state_bytes: int, folder: Path) -> set[int]:
    """The steps, or as many evenly spaced ones of them as the disk has room for."""
    ordered = sorted(steps)
    room = min(_MOST_BYTES, _SHARE_OF_DISK * shutil.disk_usage(folder).free)
    fit = max(_FEWEST_STATES, int(room // max(1, 5 * state_bytes)))  # reference: 4 times in fp64
    if fit >= len(ordered):
        return set(ordered)
    return {ordered[round(place * (len(ordered) - 1) / (fit - 1))] for place in range(fit)}
