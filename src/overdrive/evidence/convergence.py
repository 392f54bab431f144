"""Compares the training of two arms of runs: which ended, how soon they learned, and along which loss curve.

Three ways in which a candidate can be wrong although its final metric is right: it diverges more often;
it learns much slower or, by a leak or changed semantics, much faster; its loss curve is another one. Every test
here is one of exchangeable labels: Fisher's exact test, and permutations of runs.

Sources: the reference convergence points of MLPerf Training (steps to target); R. A. Fisher (1935).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.evidence import student

Array = NDArray[np.floating[Any]]
Curves = Sequence[Sequence[float]]  # one loss a step, of every run of an arm; all finite

# A curve is judged as 20 means: each smooths over 5 % of the steps, half of what counts as another speed.
BINS = 20
_TARGET = 0.8  # of the way: late enough to be hard, early enough that nearly all runs get there
# With 7 runs an arm, 2 of 3,432 ways to deal the labels are as extreme as can be: 0.0006. With 6 it is 0.002.
_DEALS = 10_000
# Both curve tests come on top of the metric's, and are asked of every candidate at every look.
_RARE = 0.001  # p
_SUSPECT = 0.05  # ... where there is another look to come: with 5 runs an arm the rarest deal is 0.008
_CHANGE = 0.1  # of steps to target, as a share


@dataclass(frozen=True)
class LossPace:
    """The steps after which the arms reach the same smoothed loss; a run that never does counts with all steps."""

    target: float  # loss
    original: float  # mean steps
    candidate: float
    reached: tuple[int, int]  # runs of each arm
    p: float  # two-sided

    @property
    def change(self) -> float:
        """How many more steps the candidate needs, as a share: 0.1 is a tenth slower, -0.5 twice as fast."""
        return self.candidate / self.original - 1

    @property
    def fault(self) -> str | None:
        """Why the candidate is refused, as a clause, or None."""
        return self._told if self.p < _RARE and self._another else None

    @property
    def doubt(self) -> str | None:
        """Why more runs are asked for, where there are more to come."""
        return self._told if self.p < _SUSPECT and self._another else None

    @property
    def _another(self) -> bool:
        return abs(self.change) > _CHANGE

    @property
    def _told(self) -> str:
        summary = f"it came to the loss {self.target:.4g} in {self.candidate:.0f} steps instead of {self.original:.0f}"
        return f"{summary} (p = {self.p:.2g})"


@dataclass(frozen=True)
class Band:
    """The place where the candidate's smoothed loss is farthest from the original's, in spreads over seeds."""

    step: int
    difference: float  # candidate's mean less the original's, in the loss's unit
    low: float
    high: float  # the interval of this difference
    envelope: float  # the largest difference that seeds excuse there
    p: float  # of so large a difference anywhere on the way

    @property
    def fault(self) -> str | None:
        """Why the candidate is refused, as a clause, or None: the whole interval lies beyond the envelope."""
        return self._told if self.p < _RARE and (self.low > self.envelope or self.high < -self.envelope) else None

    @property
    def doubt(self) -> str | None:
        """Why more runs are asked for, where there are more to come: its estimate lies beyond the envelope."""
        return self._told if self.p < _SUSPECT and abs(self.difference) > self.envelope else None

    @property
    def _told(self) -> str:
        summary = f"around step {self.step} its loss is {self.difference:+.2g} away"
        return f"{summary}, and seeds excuse ±{self.envelope:.2g} (p = {self.p:.2g})"


def fisher(original: tuple[int, int], candidate: tuple[int, int]) -> float:
    """The one-sided p of so many failures among the candidate's runs; each arm is (failures, runs)."""
    (failed_o, runs_o), (failed_c, runs_c) = original, candidate
    failed = failed_o + failed_c
    ways = sum(
        math.comb(runs_c, count) * math.comb(runs_o, failed - count)
        for count in range(failed_c, min(failed, runs_c) + 1)
    )
    return ways / math.comb(runs_o + runs_c, failed)


def pace(original: Curves, candidate: Curves) -> LossPace | None:
    """Steps to the loss that the original has at 80 % of the way; None for too few runs or steps."""
    arms = _smooth(original, candidate)
    if arms is None:
        return None
    centres, one, other = arms
    target = float(one[:, math.ceil(_TARGET * BINS) - 1].mean())
    length = _common_length(original, candidate)
    found = [np.array([_first_below(curve, centres, target) for curve in arm]) for arm in (one, other)]
    steps = [np.where(np.isfinite(arm), arm, float(length)) for arm in found]
    return LossPace(
        target=target,
        original=float(steps[0].mean()),
        candidate=float(steps[1].mean()),
        reached=(int(np.isfinite(found[0]).sum()), int(np.isfinite(found[1]).sum())),
        p=_permutation_p(steps[0][:, None], steps[1][:, None]),
    )


def band(original: Curves, candidate: Curves, spreads: float, alpha: float) -> Band | None:
    """The arms' curves where they are farthest apart; None for too few runs or steps, or equal seeds.

    The arms are in pairs, run by run. `spreads`: how many standard deviations over the original's seeds are excused;
    `alpha`: one-sided, of the interval.
    """
    arms = _smooth(original, candidate)
    if arms is None or not math.isfinite(spreads):
        return None
    centres, one, other = arms
    scale = np.vstack((one, other)).std(axis=0)
    known = scale > 1e-12 * np.abs(one.mean(axis=0))  # below: the last bits of a mean
    if not known.any():
        return None
    distances = np.where(known, np.abs(other.mean(axis=0) - one.mean(axis=0)) / np.where(known, scale, 1.0), 0.0)
    worst = int(distances.argmax())
    interval = student.paired(one[:, worst], other[:, worst], alpha)
    return Band(
        step=round(float(centres[worst])),
        difference=interval.estimate,
        low=interval.low,
        high=interval.high,
        envelope=spreads * float(one[:, worst].std(ddof=1)),
        p=_permutation_p(one[:, known] / scale[known], other[:, known] / scale[known]),
    )


def _common_length(original: Curves, candidate: Curves) -> int:
    return min((len(losses) for losses in (*original, *candidate)), default=0)


def _smooth(original: Curves, candidate: Curves) -> tuple[Array, Array, Array] | None:
    """The steps at the bins' centres, and the means of both arms' losses in them (runs x bins)."""
    length = _common_length(original, candidate)
    if length < BINS or min(len(original), len(candidate)) < 2:
        return None
    edges = np.linspace(0, length, BINS + 1).astype(int)
    widths = np.diff(edges)
    one, other = (
        np.add.reduceat(np.array([losses[:length] for losses in arm], dtype=float), edges[:-1], axis=1) / widths
        for arm in (original, candidate)
    )
    return edges[:-1] + (widths + 1) / 2, one, other


def _first_below(curve: Array, centres: Array, target: float) -> float:
    """The step at which the curve first comes down to the target, between bins by a straight line."""
    below = np.flatnonzero(curve <= target)
    if not len(below):
        return math.inf
    at = int(below[0])
    if at == 0:
        return float(centres[0])
    share = (curve[at - 1] - target) / (curve[at - 1] - curve[at])
    return float(centres[at - 1] + share * (centres[at] - centres[at - 1]))


def _permutation_p(original: Array, candidate: Array) -> float:
    """Two-sided p of the largest difference of means over the columns (runs x columns), labels dealt anew.

    Dealt among all runs and not within their pairs, of which 10 give only 1,024 ways: too large a p, where pairs agree.
    """
    runs = np.vstack((original, candidate))
    runs = runs - runs.mean(axis=0)
    seen = float(np.abs(candidate.mean(axis=0) - original.mean(axis=0)).max())
    dealt = np.abs(_deals(len(original), len(candidate)) @ runs).max(axis=1)
    slack = 1e-9 * float(np.abs(runs).max())  # the same deal, summed in another order, is no smaller
    return float((dealt >= seen - slack).mean())


@lru_cache(maxsize=4)
def _deals(originals: int, candidates: int) -> Array:
    """Weights (deals x runs) whose product with the runs is the candidate's mean less the original's.

    All deals where they are few, otherwise some, drawn at random once and for all; the true one among them.
    """
    runs = originals + candidates
    if math.comb(runs, candidates) <= _DEALS:
        weights = np.full((math.comb(runs, candidates), runs), -1 / originals)
        for row, chosen in zip(weights, combinations(range(runs), candidates), strict=True):
            row[list(chosen)] = 1 / candidates
        return weights
    true = np.repeat([-1 / originals, 1 / candidates], [originals, candidates])
    dealt = np.random.default_rng(0).permuted(np.tile(true, (_DEALS - 1, 1)), axis=1)
    return np.vstack((true, dealt))
