"""The four levels of how much a technique may change a program."""

from __future__ import annotations

from enum import Enum


class Contract(str, Enum):
    """How much a technique may change what a program computes, from nothing to the training itself."""

    EXACT = "exact"  # every bit the same
    ROUNDING = "rounding"  # no further from an fp64 reference than another order of summation would be
    STATISTICAL = "statistical"  # the same result within the noise of the seed
    OPEN = "open"  # changes the training itself; only when asked for by name

    @property
    def rank(self) -> int:
        return list(Contract).index(self)

    def allows(self, other: Contract) -> bool:
        """Whether a user who accepts this level also accepts `other`."""
        return other.rank <= self.rank

    def __str__(self) -> str:
        return self.value
