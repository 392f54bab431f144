"""Whether a block still feels what ran before it: caches, the allocator's state, clocks.

If a share rho of a change comes one block late, fold-over pairs see 1 - 1.5 rho of an effect (.93, .85, .70 at rho =
.05, .1, .2). The remedy is more steps that are not timed before each block; a correction by columns would triple that
part of the error (statistics-review.md, 8.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.core.interval import Interval
from overdrive.evidence import student
from overdrive.evidence.screening.factors import Factor, Observation
from overdrive.evidence.screening.matrices import Array, paired
from overdrive.evidence.screening.regression import huberised

TOLERATED = 0.03  # a share that bends an effect by less than a twentieth of it
_SPARE = 10  # pairs beyond the effects, below which nothing can be told
_FEWEST = 24
_TURNS = 6
_SHOWS = 4.0  # times as much as noise that the effects must explain, for it to show in them whether they come late


@dataclass(frozen=True)
class CarryOver:
    """The share of a change that comes one block late, with its 95 % interval; and whether that is too much."""

    share: Interval
    longer_lead: bool  # make the untimed steps before each block twice as many


def carry_over(blocks: Iterable[Observation], factors: Sequence[Factor]) -> CarryOver | None:
    """From all blocks so far; None where they are too few, or no candidate changes anything, so that it cannot show.

    Raises:
        ValueError: as `paired`.
    """
    pairs = paired(blocks, factors)
    there = ~np.isnan(pairs.before).any(axis=1)
    own = (pairs.first - pairs.second)[there]
    if len(own) < max(_FEWEST, own.shape[1] + _SPARE):
        return None
    # Half a pair's time is that of its row, moved by `rho` towards the row before: the first half's is `before`.
    late = (pairs.before - pairs.first)[there] - own
    values = pairs.differences[there]
    share, error = 0.0, np.inf
    for _ in range(_TURNS):
        design = np.column_stack([own + share * late, np.ones(len(own))])
        effects, *_ = np.linalg.lstsq(design, values, rcond=None)
        residuals = values - design @ effects
        left = huberised(residuals)
        lag = late @ effects[:-1]
        explained, *_ = np.linalg.lstsq(design, lag, rcond=None)
        rest = lag - design @ explained  # what other effects could not take up themselves
        squares = float(rest @ rest)
        if squares < 1e-12:
            return None
        step = float(rest @ left) / squares
        share = float(np.clip(share + step, -0.5, 0.6))
        variance = float(left @ left) / max(1, len(values) - design.shape[1] - 1)
        kept = max(0.5, float(np.mean(left == residuals)))
        error = float(np.sqrt(variance / squares)) / kept
    half = student.quantile(0.95, max(1, len(values) - own.shape[1] - 2)) * error
    if half > 0.5 or _explains(values, residuals, own.shape[1]) < _SHOWS:
        return None
    interval = Interval(share - half, share, share + half)
    return CarryOver(interval, interval.low > 0 and share > TOLERATED)


def _explains(values: Array, residuals: Array, effects: int) -> float:
    """F of the effects: what each explains, in units of what noise would."""
    centred = values - values.mean()
    each = float(centred @ centred - residuals @ residuals) / effects
    return each * (len(values) - effects - 1) / max(float(residuals @ residuals), 1e-30)
