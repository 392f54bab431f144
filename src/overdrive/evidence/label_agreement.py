"""Whether two sets of labels agree but for a share that was fixed beforehand: an exact test of equivalence."""

from __future__ import annotations

import math
from dataclasses import dataclass

ALPHA = 0.05


@dataclass(frozen=True)
class Agreement:
    """Of so many labels, how many differ. `bound`: the share that may differ in the long run, with 95 % confidence."""

    labels: int
    differ: int
    margin: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.bound <= self.margin


def agreement(labels: int, differ: int, margin: float) -> Agreement:
    """The bound is Clopper and Pearson's, one-sided: of none that differ in 299 labels it is 1 %."""
    if not 0 <= differ <= labels:
        raise ValueError(f"{differ} of {labels} labels cannot differ")
    if differ == labels:
        return Agreement(labels, differ, margin, 1.0)
    low, high = differ / labels, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(differ, labels, middle) > ALPHA else (low, middle)
    return Agreement(labels, differ, margin, high)


def fewest(margin: float) -> int:
    """Labels that it takes, where none differs."""
    return math.ceil(math.log(ALPHA) / math.log1p(-margin))


def _at_most(count: int, of: int, share: float) -> float:
    """The chance of so many or fewer, each with this chance."""
    if share in (0.0, 1.0):
        return float(share == 0.0)
    logs = [math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(count + 1)]
    terms = (each + k * math.log(share) + (of - k) * math.log1p(-share) for k, each in enumerate(logs))
    return math.fsum(map(math.exp, terms))
