"""Which ranks are slow: each measures what its own part of the steps takes, without what it waits for others."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

_SLOW = 1.5  # times what the others take, as a median of theirs
_IN_A_ROW = 3  # comparisons: what passes (another program, a page that is read) is nobody's fault
_LEAST = 2_000  # microseconds more: less is within what a scheduler does


class Pace:
    """Of one rank.

    Args:
        waited: seconds that this rank has waited for others so far.
    """

    def __init__(self, rank: int, waited: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._rank, self._waited, self._clock = rank, waited, clock
        self._from = clock(), waited()
        self._slow = 0  # comparisons in a row
        self._told = False

    def lap(self) -> int:
        """Microseconds of work of its own since this was asked last."""
        now, waited = self._clock(), self._waited()
        began, before = self._from
        self._from = now, waited
        return max(0, round(1e6 * (now - began - (waited - before))))

    def slower(self, laps: Sequence[int], steps: int) -> str:
        """All ranks' laps, of so many steps: what is to be told of this one; "" where nothing is. Told once."""
        own, others = laps[self._rank], statistics.median(each for n, each in enumerate(laps) if n != self._rank)
        is_slow = own > _SLOW * others and own - others > _LEAST
        self._slow = self._slow + 1 if is_slow else 0
        if self._told or self._slow < _IN_A_ROW:
            return ""
        self._told = True
        times = f"{own / steps / 1e3:,.1f} ms, and {others / steps / 1e3:,.1f}"
        return (
            f"is slow: its own part of a step takes {own / max(others, 1):.1f} times what the others' takes ({times})"
        )
