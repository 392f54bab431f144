"""Losses that leap: several in a row that lie above all that is usual."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

_WINDOW = 128  # losses that tell what is usual
_LEAST = 32  # of them, before any is judged
_IN_A_ROW = 3  # one batch may be odd
_SPREADS = 8.0  # above the median; by chance, three in a row do not come there even where tails are heavy
_FLAT = 0.01  # of the median: the least spread, where losses hardly move
_NORMAL = 1.4826  # times the median deviation is the standard deviation of a normal distribution


@dataclass(frozen=True)
class Spike:
    """Attributes: `step`: of the first loss that is too high; `value`: of it; `usual`: the median before."""

    step: int
    value: float
    usual: float


class Spikes:
    """Of the losses at one place of a step."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_WINDOW)
        self._above: list[Spike] = []

    def look(self, step: int, value: float) -> Spike | None:
        """What has begun with this loss or one of those before it; told once, until losses are usual again."""
        median, bound = self._level()
        if value > bound:
            self._above.append(Spike(step, value, median))
        else:
            self._above.clear()
        self._usual.append(value)
        return self._above[0] if len(self._above) == _IN_A_ROW else None

    def _level(self) -> tuple[float, float]:
        if len(self._usual) < _LEAST:
            return 0.0, float("inf")
        median = statistics.median(self._usual)
        spread = _NORMAL * statistics.median(abs(each - median) for each in self._usual)
        return median, median + _SPREADS * max(spread, _FLAT * abs(median))
