"""An estimate between two bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal


@dataclass(frozen=True)
class Interval:
    """A number and how well it is known. A speedup is a ratio of times: 1.25 is a quarter faster."""

    low: float
    estimate: float
    high: float

    def rounded(self) -> tuple[str, str, str]:
        """Low, estimate and high as text, rounded outwards: the interval is never shown too narrow."""
        values = (self.low, self.estimate, self.high)
        places = 2 if not self.low >= 2 else 1 if self.low < 100 else 0
        if any(value != 1 and math.isfinite(value) and round(value, places) == 1 for value in values):
            places = 3
        ways = (ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_CEILING)
        low, estimate, high = (_rounded(value, places, way) for value, way in zip(values, ways, strict=True))
        return low, estimate, high

    def as_speedup(self) -> str:
        """ "1.25x [1.21, 1.30]"; 1 is the speed of what it was compared with."""
        low, estimate, high = self.rounded()
        return f"{estimate}x [{low}, {high}]"

    def __str__(self) -> str:
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"


def _rounded(value: float, places: int, way: str) -> str:
    return f"{Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), way):,}" if math.isfinite(value) else str(value)
