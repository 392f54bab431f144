"""Interactions of two labels, from the sums of fold-over pairs.

Each sum is taken less the mean of its neighbours in the same process, after what is already explained was taken off
these: that removes the process and a drift. With antagonists (1.3 each, 1.0 together) main effects alone find the
best plan in 43 % of searches (statistics-review.md, 8.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.evidence import student
from overdrive.evidence.screening.factors import Factor
from overdrive.evidence.screening.matrices import Array, Pairs, Term
from overdrive.evidence.screening.regression import huberised

# |t| from which on an interaction counts: of 190 pairs of nothing, one is found in 0.5 % of screenings.
THRESHOLD = 4.2
_CHANCE = 2.7e-5  # of |t| > THRESHOLD under a normal distribution, for few degrees of freedom
_KEPT = 3.0  # |t| that an interaction must still have when all are fitted together
_MOST = 12
_NEIGHBOURS = 2  # sums before, and as many after
_FEWEST = 12  # pairs, below which there is nothing to be found
_TURNS = 4  # of explaining and smoothing; the second changes a coefficient by a few per cent, the fourth by nothing


@dataclass(frozen=True, eq=False)
class PairSums:
    """Sums of pairs, with the columns of the terms in them, each less its mean in the process."""

    values: Array  # (pairs,)
    process: NDArray[np.integer[Any]]  # (pairs,)
    base: Array  # (pairs, n): of labels by themselves where they do not fold over in every pair
    terms: tuple[Term, ...]
    columns: Array  # (pairs, terms)

    @property
    def processes(self) -> int:
        return len(np.unique(self.process))

    def columns_of(self, terms: tuple[Term, ...]) -> Array:
        return self.columns[:, [self.terms.index(term) for term in terms]]

    def detrended(self, terms: tuple[Term, ...]) -> Array:
        """The sums less what their neighbours say of process and drift, and less what the base explains, (pairs,)."""
        return self._explained(self.columns_of(terms))[0]

    def left(self, columns: Array) -> Array:
        """The same, less what these columns explain too."""
        return self._explained(columns)[1]

    def _explained(self, columns: Array) -> tuple[Array, Array]:
        everything = np.column_stack([self.base, columns])
        solution = np.zeros(everything.shape[1])
        detrended = self.values
        for _ in range(_TURNS if everything.shape[1] else 1):
            detrended = self.values - _near(self.values - everything @ solution, self.process)
            solution, *_ = np.linalg.lstsq(everything, detrended, rcond=None)
        of_base = self.base @ solution[: self.base.shape[1]]
        return detrended - of_base, detrended - everything @ solution


def sums(pairs: Pairs, factors: tuple[Factor, ...]) -> PairSums:
    """The sums with the columns of all pairs of labels, of different factors, that were on together now and then."""
    of_factor = {label: factor.name for factor in factors for label in factor.levels}
    placebos = {label for factor in factors if factor.placebo for label in factor.levels}
    real = [label for label in pairs.labels if label not in placebos]
    terms = tuple((one, other) for one, other in combinations(real, 2) if of_factor[one] != of_factor[other])
    columns = _centred([pairs.sums_of(term) for term in terms], pairs.process)
    base = _centred([pairs.sums_of((label,)) for label in real], pairs.process)
    told = (columns**2).sum(axis=0) > 1.0  # else hardly ever both on, or always
    return PairSums(
        pairs.sums,
        pairs.process,
        base[:, (base**2).sum(axis=0) > 1e-9],
        tuple(term for term, there in zip(terms, told, strict=True) if there),
        columns[:, told],
    )


def found(sums: PairSums) -> tuple[Term, ...]:
    """The terms that interact beyond doubt: forward selection, then those go that lost their weight meanwhile."""
    count = len(sums.values)
    chosen: list[int] = []
    if count < _FEWEST or not sums.terms:
        return ()
    while len(chosen) < min(_MOST, count // 6):
        explained = np.column_stack([sums.base, sums.columns[:, chosen]])
        left = huberised(sums.left(sums.columns[:, chosen]))
        columns = _without(sums.columns, explained)
        freedom = count - explained.shape[1] - sums.processes - 1
        if freedom < 4:
            break
        squares = (columns**2).sum(axis=0)
        usable = squares > 0.05 * (sums.columns**2).sum(axis=0)
        slopes = np.where(usable, (columns.T @ left) / np.where(usable, squares, 1.0), 0.0)
        rest = np.maximum((left**2).sum() - slopes**2 * squares, 1e-30)
        t = slopes * np.sqrt(squares * freedom / rest)
        best = int(np.abs(t).argmax())
        if abs(t[best]) < (THRESHOLD if freedom > 200 else student.quantile(1 - _CHANCE, freedom)):
            break
        chosen.append(best)
    return tuple(sums.terms[index] for index in _still_there(sums, chosen))


def _still_there(sums: PairSums, chosen: list[int]) -> list[int]:
    while chosen:
        columns = _without(sums.columns[:, chosen], sums.base)
        left = huberised(sums.left(sums.columns[:, chosen]))
        detrended = sums.detrended(tuple(sums.terms[index] for index in chosen))
        solution, *_ = np.linalg.lstsq(columns, detrended, rcond=None)
        scale = (left**2).sum() / max(1, len(left) - columns.shape[1] - sums.processes)
        t = np.abs(solution) / np.sqrt(np.maximum(np.diag(np.linalg.pinv(columns.T @ columns)), 1e-30) * scale)
        if t.min() >= _KEPT:
            break
        chosen = [each for at, each in enumerate(chosen) if at != int(t.argmin())]
    return chosen


def _without(columns: Array, explained: Array) -> Array:
    """What is left of the columns when `explained` has explained what it can."""
    if explained.shape[1] == 0:
        return columns
    solution, *_ = np.linalg.lstsq(explained, columns, rcond=None)
    left: Array = columns - explained @ solution
    return left


def _centred(columns: list[Array], process: NDArray[np.integer[Any]]) -> Array:
    matrix: Array = np.array(columns).reshape(len(columns), len(process)).T.copy()
    for each in np.unique(process):
        matrix[process == each] -= matrix[process == each].mean(axis=0)
    return matrix


def _near(values: Array, process: NDArray[np.integer[Any]]) -> Array:
    """For each pair, the mean of the nearest of the same process, up to two before and two after.

    A pair alone in its process has itself for a neighbour, and tells nothing.
    """
    order = np.argsort(process, kind="stable")
    own, among = values[order], process[order]
    total, count = np.zeros(len(own)), np.zeros(len(own))
    for distance in range(1, min(_NEIGHBOURS, len(own) - 1) + 1):
        same = among[distance:] == among[:-distance]
        total[distance:] += own[:-distance] * same
        count[distance:] += same
        total[:-distance] += own[distance:] * same
        count[:-distance] += same
    means = np.empty(len(own))
    means[order] = np.where(count > 0, total / np.maximum(count, 1), own)
    return means
