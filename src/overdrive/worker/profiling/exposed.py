"""Splits a step on a GPU: what the GPU does where it works, and what the program's thread does where it does not.

While a kernel runs, the time belongs to the phase that launched it, whatever the thread does meanwhile: only what
the GPU waits for lengthens the step. Of kernels that overlap the one that began first has the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

IDLE_IN = {"data": "data", "copy": "copy", "synchronisation": "synchronisation"}  # all else is Python and launching


@dataclass(frozen=True)
class Work:
    """One kernel or copy on a GPU, in nanoseconds, with the phase that launched it."""

    start: int
    end: int
    phase: str


def exposed(
    work: Iterable[Work], host: Sequence[tuple[int, int, str, bool]], window: tuple[int, int]
) -> tuple[dict[str, float], float]:
    """Seconds by part, which add up to the window; and the seconds in which the GPU did nothing.

    `host`: what the thread does, without gaps and in order: start, end, phase, whether an operator runs.
    """
    parts: dict[str, float] = {}
    free: list[tuple[int, int]] = []
    at = window[0]
    for each in sorted(work, key=lambda one: (one.start, one.end)):
        start, end = max(each.start, at), min(each.end, window[1])
        if end <= start:
            continue
        if start > at:
            free.append((at, start))
        parts[each.phase] = parts.get(each.phase, 0.0) + (end - start) / 1e9
        at = end
    if window[1] > at:
        free.append((at, window[1]))
    idle = sum(end - start for start, end in free) / 1e9
    place = 0
    for start, end in free:
        while place < len(host) and host[place][1] <= start:
            place += 1
        here = place
        while here < len(host) and host[here][0] < end:
            begun, ended, phase, _ = host[here]
            part = IDLE_IN.get(phase, "python")
            parts[part] = parts.get(part, 0.0) + (min(ended, end) - max(begun, start)) / 1e9
            here += 1
    return parts, idle
