"""What a screening found: effects of labels and of pairs of labels, with how well they are known."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from overdrive.core.interval import Interval
from overdrive.evidence import student
from overdrive.evidence.screening.matrices import Array, Term
from overdrive.evidence.speed import factor

CONFIDENCE = 0.95
_MANY = 400  # degrees of freedom that are as good as more: t is 1.966 and not 1.960


@dataclass(frozen=True, eq=False)
class Effects:
    """log(seconds per step) of a plan less that of nothing on = sum of `mean` over the terms that are in the plan.

    A term of two labels is there only where they were found to interact; the effect of one label alone is then
    that with the other off.
    """

    terms: tuple[Term, ...]
    mean: Array  # (terms,): log seconds that it adds; negative is faster
    covariance: Array  # (terms, terms): with the prior of `regression`, and the spread between processes
    information: Array  # (terms, terms): of the likelihood alone; singular where pairs are fewer than effects
    score: Array  # (terms,)
    freedom: Array  # (terms,): degrees of freedom of Student's t
    pairs: int  # that count
    dropped: int  # that were measured and do not count
    pairs_by_process: tuple[int, ...]  # in the order in which they were started
    noise: float  # standard deviation of one block's log time, what disturbed it apart
    spread: float  # of an effect between processes, one standard deviation of its logarithm
    seen: Mapping[str, int]  # for each label, the pairs that compared it with another level
    placebo: float = 1.0  # by what all errors were widened since the placebos moved more than chance explains

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(term[0] for term in self.terms if len(term) == 1)

    @property
    def processes(self) -> int:
        return len(self.pairs_by_process)

    @property
    def interacting(self) -> tuple[frozenset[str], ...]:
        """The pairs of labels that were found to interact."""
        return tuple(frozenset(term) for term in self.terms if len(term) == 2)

    def of_plan(self, plan: Collection[str]) -> Array:
        """The weight of each term, (terms,): 1 where all its labels are on."""
        on = frozenset(plan)
        return np.array([float(on.issuperset(term)) for term in self.terms])

    def on_average(self, label: str) -> Array:
        """The weight of each term in the effect of a label, averaged over the others on and off, (terms,)."""
        return np.array([0.0 if label not in term else 1.0 if len(term) == 1 else 0.5 for term in self.terms])

    def speedup(self, label: str, confidence: float = CONFIDENCE) -> Interval:
        """How many times as fast the program is with a label on as with it off, on average over the others."""
        return self.interval(self.on_average(label), confidence)

    def speedup_of(self, plan: Collection[str]) -> Interval:
        """How many times as fast the program is with these labels on, and no others, as with none."""
        return self.interval(self.of_plan(plan))

    def beside(self, label: str, plan: Collection[str]) -> Interval:
        """How many times as fast the plan is with this label as without it."""
        rest = set(plan) - {label}
        return self.interval(self.of_plan({*rest, label}) - self.of_plan(rest))

    def contributions(self, plan: Collection[str]) -> dict[str, Interval]:
        """What each label gains within a plan: its Shapley value, since what two do together is shared by halves.

        The estimates multiply to that of `speedup_of(plan)`.
        """
        on = self.of_plan(plan)
        return {label: self.interval(on * self.on_average(label)) for label in self.labels if label in plan}

    def interval(self, weights: Array, confidence: float = CONFIDENCE) -> Interval:
        """Of exp(-(weights @ effects)), as a speedup."""
        centre, half = self.gain(weights)
        concerned = self.freedom[weights != 0]
        freedom = min(_MANY, max(1, int(concerned.min()))) if len(concerned) else 1
        return factor(centre, student.quantile(confidence, freedom) * half)

    def gain(self, weights: Array) -> tuple[float, float]:
        """Logarithm of a speedup, and its standard error."""
        return -float(weights @ self.mean), math.sqrt(max(0.0, float(weights @ self.covariance @ weights)))
