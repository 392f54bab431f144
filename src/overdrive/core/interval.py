"""An estimate between two bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A number and how well it is known. A speedup is a ratio of times: 1.25 is a quarter faster."""

    low: float
    estimate: float
    high: float

    def as_speedup(self) -> str:
        """`1.25x [1.20, 1.30]`."""
        return f"{self.estimate:.2f}x [{self.low:.2f}, {self.high:.2f}]"

    def __str__(self) -> str:
        return f"{self.estimate:.3f} ({self.low:.3f} to {self.high:.3f})"
