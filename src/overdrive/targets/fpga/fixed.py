"""Numbers in fixed point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Fixed:
    """A signed fixed-point type: bits before the point, the sign among them, and after it."""

    integer: int
    fraction: int

    @property
    def text(self) -> str:
        """As hls4ml takes it: truncated, and held at the ends of the range."""
        return f"fixed<{self.integer + self.fraction},{self.integer},TRN,SAT>"

    @property
    def step(self) -> float:
        return 2.0**-self.fraction

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest number of it."""
        end: float = 2.0 ** (self.integer - 1)
        return -end, end - self.step

    def of(self, values: Any) -> Any:
        """Arrays."""
        return np.clip(np.floor(values / self.step) * self.step, *self.ends).astype(values.dtype)


def integer_bits(largest: float) -> int:
    """That hold numbers up to this size, the sign among them."""
    return 1 + max(0, math.floor(math.log2(largest)) + 1) if largest > 0 else 1
