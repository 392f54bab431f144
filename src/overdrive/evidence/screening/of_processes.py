"""Candidates that must be there before a process starts: whole processes are the rows.

Processes come in pairs with a row and its mirror image over these candidates, and each also carries the screening
inside. An effect's error is s_p sqrt(2 / Q) after Q pairs, s_p the spread between processes: below s_p nothing can be
decided about such candidates (+-2 % at s_p = 5 % takes 48 pairs).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.evidence.screening import regression
from overdrive.evidence.screening.effects import Effects
from overdrive.evidence.screening.factors import Factor, Observation, Row, complete
from overdrive.evidence.screening.matrices import Term, paired
from overdrive.evidence.screening.regression import Problem

_SPREAD = 0.03  # between processes, of log seconds, before any is known
_TRIM = 0.2


@dataclass(frozen=True)
class ProcessMean:
    """One process: its mean over balanced pairs of blocks."""

    pair: int  # number of the pair of processes, of which it is one half
    row: Row  # over the candidates of processes
    log_seconds: float  # per step
    error: float  # of that, one standard deviation, by how much its pairs of blocks differ; nan: it has one pair
    began: float  # seconds on a clock that all have in common


def mean_of(blocks: Sequence[Observation]) -> tuple[float, float]:
    """Log seconds per step of a process, and its standard error: over its complete pairs, the fifth at either end
    left out.

    Raises:
        ValueError: it has no complete pair.
    """
    means = sorted((first.log_seconds + second.log_seconds) / 2 for first, second in complete(blocks))
    if not means:
        raise ValueError("a process without a complete pair has no mean")
    cut = int(_TRIM * len(means))
    taken = means[cut : len(means) - cut]
    if len(means) < 2:
        return taken[0], math.nan
    winsorised = [taken[0]] * cut + taken + [taken[-1]] * cut  # Tukey and McLaughlin, 1963
    return float(np.mean(taken)), float(np.std(winsorised, ddof=1)) * math.sqrt(len(means)) / len(taken)


def error_of(runs: Sequence[ProcessMean]) -> float:
    """Of a process's mean, one standard deviation: root mean square over those that are known; 0 of none."""
    known = [run.error**2 for run in runs if not math.isnan(run.error)]
    return math.sqrt(sum(known) / len(known)) if known else 0.0


def estimate_of_processes(runs: Sequence[ProcessMean], factors: Sequence[Factor], spread: float = _SPREAD) -> Effects:
    """The main effects of what distinguishes processes.

    Where steps are of any length (an episode of reinforcement learning) a process's mean is known badly: of a public
    one, from four processes of three pairs each, `waiting` was told as 2.20x [2.05, 2.37], and it gains nothing.

    Args:
        spread: between processes, one standard deviation of log seconds: as duels on this machine showed it.

    Raises:
        ValueError: no run, or as `paired`.
    """
    if not runs:
        raise ValueError("effects need at least one run")
    blocks = [Observation(0, run.pair, run.row, run.log_seconds, run.began) for run in runs]
    pairs = paired(blocks, factors)
    terms: tuple[Term, ...] = tuple((label,) for label in pairs.labels)
    columns = [pairs.differences_of(term) for term in terms]
    # The spread between processes is the very noise here, and how well each is known.
    noise = math.hypot(spread, error_of(runs))
    problem = Problem(
        np.column_stack(columns),
        pairs.differences,
        pairs.process,
        np.full(len(terms), False),
        noise * math.sqrt(2),
    )
    fit = regression.fit(problem, robust=False)
    count = len(terms)
    return Effects(
        terms,
        fit.mean[:count],
        fit.covariance[:count, :count],
        *regression.profiled(fit, count),
        fit.freedom[:count],
        pairs=len(pairs),
        dropped=0,
        pairs_by_process=(1,) * len(runs),
        noise=fit.noise / math.sqrt(2),
        spread=0.0,
        seen=pairs.seen(),
    )
