"""Times runs for a limit: the shortest of several, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_FEWEST = 5  # runs: the first ones wake clocks, touch pages and choose kernels
_TOO_LONG = 1.5  # of the time that there is


class NotMeasured(Exception):
    """This machine cannot do it, or not within reason; the message says why."""


class Measurements:
    """What was measured so far, and until when there is time."""

    def __init__(self, quick: bool, seconds: float) -> None:
        self.quick = quick
        self.measures: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, str] = {}
        self.notes: list[str] = []
        self._until = time.monotonic() + seconds

    @property
    def share(self) -> float:
        """Seconds for one measure: the shortest of many runs settles within that."""
        return 0.12 if self.quick else 0.4

    def put(self, name: str, value: float, unit: str, how: str) -> None:
        self.measures[name] = {"value": value, "unit": unit, "how": how}

    def attempt(self, name: str, measure: Callable[[], None]) -> None:
        """What goes wrong leaves out this one by name, and nothing else."""
        if time.monotonic() > self._until:
            self.missing[name] = "no time was left"
            return
        try:
            measure()
        except NotMeasured as reason:
            self.missing[name] = str(reason)
        except Exception as error:
            first = str(error).strip().split("\n", 1)[0][:160]
            self.missing[name] = f"{type(error).__name__}: {first}" if first else type(error).__name__


def best_seconds(act: Callable[[], Any], seconds: float, wait: Callable[[], None] = lambda: None) -> float:
    """The shortest of several runs: a limit is what the device can do, not what it did on average.

    `wait` returns when the device has done all that it was given.
    """
    began = time.perf_counter()
    act()
    wait()
    best = time.perf_counter() - began
    if best > _TOO_LONG * seconds:  # one more look at what takes so long
        began = time.perf_counter()
        act()
        wait()
        return min(best, time.perf_counter() - began)
    until = time.perf_counter() + seconds
    runs = 0
    while time.perf_counter() < until or runs < _FEWEST:
        began = time.perf_counter()
        act()
        wait()
        best = min(best, time.perf_counter() - began)
        runs += 1
    return best
