"""What ranks that fail cost a run under `--survive`, which goes on from its last snapshot: event by event, a failure
being an event."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from overdrive.core.unlike_ranks import Failures, Survival
from overdrive.survive.interval import MOST_LOST, SnapshotInterval

_RUNS = 100  # of which the mean is told
_ENDLESS = 20  # times as long as its work: such a run is taken to have no end


@dataclass(frozen=True)
class Back:
    """A run that went on after so many `steps`; seconds from its start until its `first` and its last were over."""

    steps: int
    first: float
    last: float


def survival_of(snapshot: float, backs: Sequence[Back]) -> Survival | None:
    """What was measured of a run that was killed; None where it never skipped a second step.

    The first step has all that a program does once (a table is opened, a model called for the first time).
    """
    skipped = sum(back.steps - 1 for back in backs)
    if skipped < 1:
        return None
    replay = sum(back.last - back.first for back in backs) / skipped
    return Survival(snapshot, statistics.fmean(back.first for back in backs), replay)


@dataclass(frozen=True)
class Ran:
    """`seconds` of a whole run, how many ranks were `lost` in it, and whether it came to its `end`."""

    seconds: float
    lost: int
    end: bool


@dataclass(frozen=True)
class Cost:
    """Of many runs: the mean of those that came to their end (None where none did), and the share of those."""

    seconds: float | None
    lost: float
    ends: float


def cost_of(failures: Failures, ranks: int, step: float) -> Cost:
    """Of a run on so many ranks whose steps take `step` seconds, with snapshots as seldom as `--survive` has them."""
    chance = np.random.default_rng(0)
    mtbf = failures.mtbf / ranks
    runs = [
        ran(failures.steps, step, failures.survival, SnapshotInterval(None, mtbf), _gaps(chance, mtbf))
        for _ in range(_RUNS)
    ]
    ended = [each for each in runs if each.end]
    return Cost(
        statistics.fmean(each.seconds for each in ended) if ended else None,
        statistics.fmean(each.lost for each in runs),
        len(ended) / len(runs),
    )


def _gaps(chance: np.random.Generator, mtbf: float) -> Iterator[float]:
    while True:
        yield from chance.exponential(mtbf, 64).tolist()


def ran(
    steps: int,
    step: float,
    survival: Survival,
    interval: SnapshotInterval,
    gaps: Iterator[float],
    most_lost: int = MOST_LOST,
) -> Ran:
    """One run, without its first start.

    Args:
        step: seconds.
        interval: of a process that begins.
        gaps: seconds from each failure to the next, the first from the beginning.
        most_lost: ranks, one after another, without a new snapshot in between: one more ends the run.
    """
    first = interval.seconds
    interval.took(survival.snapshot)
    then = interval.seconds
    now, kept, lost, in_a_row = 0.0, 0, 0, 0
    while True:
        back = survival.start + survival.replay * kept if lost else 0.0
        work = (steps - kept) * step
        whole = back + work + survival.snapshot * _reached(work, first, then)
        gap = next(gaps, math.inf)
        if gap >= whole:
            return Ran(now + whole, lost, True)
        now, lost = now + gap, lost + 1
        taken = _reached(gap - back, first + survival.snapshot, then + survival.snapshot)
        if taken:
            kept += int((first + (taken - 1) * then) / step + 1e-9)
        in_a_row = 1 if taken else in_a_row + 1
        if in_a_row > most_lost or now > _ENDLESS * steps * step:
            return Ran(now, lost, False)


def _reached(seconds: float, first: float, then: float) -> int:
    """How many snapshots by then: the first one comes after `first`, each other `then` later."""
    return 0 if seconds < first else 1 + int((seconds - first) / then)
