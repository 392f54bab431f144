"""What duels say about speed: intervals, verdicts, and when a duel may stop. All in log ratios of times.

A speedup's interval has to cover the truth in a *new* process too, so the process is the sample and
its blocks are repeated looks at it. With 3 processes, a bootstrap over processes and blocks covers the
truth in 90 to 92 % of cases where it claims 95 %; corrected for that, it is 40 % wider than Student's t on
the processes' means (still 20 % with 8), so t is used between processes. Blocks within one process are
many, heavy-tailed and like their neighbours: they are bootstrapped. tests/evidence/test_speed.py holds
the simulations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.core.interval import Interval
from overdrive.evidence import student

Array = NDArray[np.floating[Any]]

# A smaller gain is not looked for longer. In simulated duels of 10 pairs whose noise was 1 to 12 % a pair, 0 to 3 % of
# true gains of 5 % were given up so, 7 to 10 % of 3 %, and 100 to 26 % of no gain at all.
LEAST_GAIN = 0.03
# In simulated duels of at most 40 pairs this takes 17 pairs instead of 29 where nothing is gained and the noise is 12 %
# a pair, and gives up 0 to 2 % of duels that would have found a gain of 3 to 10 %.
LEAST_POWER = 0.1
ALPHA = 0.05  # of a duel
LOOKS = (10, 20, 40, 80)  # the numbers of pairs at which a duel may be judged
_UNNOTICED = 0.01  # the change that nobody would notice, as a share
_TRIM = 0.2  # share of pairs dropped at each end: a stalled block says nothing about the program
_RESAMPLES = 2000
_FEWEST_OF_A_PROCESS = 5  # pairs of blocks from which it is a look at how processes differ
_NORMAL = NormalDist()
# Of steps' lengths and of ratios, one standard deviation on the logarithm; and times as far as the control's ratios.
_OF_ANY_LENGTH, _TIMES_AS_FAR = 0.25, 3.0
_FEWEST_TO_COMPARE = 6  # pairs of blocks


@dataclass(frozen=True)
class Pair:
    """One block of A and one of B, back to back. A is the reference (the old), B the candidate."""

    process: int  # index of the fresh pair of processes that ran it
    steps: int  # in each of the two blocks
    seconds_a: float
    seconds_b: float
    a_first: bool
    # Of either block, as shares of its time; None where the machine does not tell: see `evidence.neighbours`.
    waited: tuple[float, float] | None = None  # for a core, by all threads together
    others: tuple[float, float] | None = None  # cores that other programs used meanwhile
    crowded: tuple[float, float] | None = None  # times as long as usual cores took, while all worked
    calls: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())  # of a model, in either block: seconds of each


@dataclass(frozen=True)
class ProcessMean:
    """The trimmed mean of one pair of processes' ln(A / B)."""

    mean: float
    variance: float  # that the noise of its blocks alone gives it
    blocks: int


class Verdict(str, Enum):
    """What an interval of a speedup allows to be said; and, of a whole plan, what was measured of its memory."""

    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"
    INCONCLUSIVE = "INCONCLUSIVE"
    SMALLER = "SMALLER"  # it needs clearly less memory, as was asked for
    FITS = "FITS"  # the program runs out of memory without it

    def __str__(self) -> str:
        return self.value


def speedup(pairs: Sequence[Pair], confidence: float = 0.95) -> Interval:
    """How many times as fast B is as A: the 20 %-trimmed mean of ln(A / B), and its interval.

    Several processes: Student's t on the means of the processes, and never narrower than their blocks
    alone would make it. Two processes can prove next to nothing (t is 12.7): have one, or three and more.
    One process: its blocks alone; the interval then says nothing about another process.
    One pair: no upper bound, and a lower one of 0.
    """
    processes, means = _processes(pairs)
    within = _within(processes, confidence, np.random.default_rng(0))
    half_widths = [half for half in (_between(means, confidence), within) if half is not None]
    return factor(float(means.mean()), max(half_widths, default=None))


def speedup_of_these(pairs: Sequence[Pair]) -> Interval:
    """The same of these very processes, each of which counts alike: how much others differ is not in its interval.

    For choosing what to look at next, where one or two processes are all there is; nothing to be published.
    """
    processes, means = _processes(pairs)
    return factor(float(means.mean()), _within(processes, 0.95, np.random.default_rng(0)))


def process_means(pairs: Sequence[Pair]) -> list[ProcessMean]:
    """What each pair of processes with five pairs of blocks or more says by itself.

    The variance of a trimmed mean is that of the winsorised looks, over the square of the share that was kept (Tukey
    and McLaughlin, Sankhya A 25, 1963); that neighbours resemble each other is left out.
    """
    found = []
    rows, means = _processes(pairs) if pairs else ([], np.array([]))
    for row, mean in zip(rows, means, strict=True):
        if len(row) >= _FEWEST_OF_A_PROCESS:
            cut = int(_TRIM * len(row))
            inner = np.sort(row)[cut : len(row) - cut]
            spread = float(np.clip(row, inner[0], inner[-1]).var(ddof=1)) / (1 - 2 * _TRIM) ** 2
            found.append(ProcessMean(float(mean), spread / len(row), len(row)))
    return found


def seconds_per_step(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Of A and of B, from the very pairs that `speedup` keeps: their ratio is its estimate.

    Totals would give another ratio: a fifth of the pairs at either end counts in them, such as those with an evaluation
    in one of the two blocks.
    """
    processes: dict[int, list[Pair]] = {}
    for pair in pairs:
        processes.setdefault(pair.process, []).append(pair)
    paces = []
    for row in processes.values():
        cut = int(_TRIM * len(row))
        kept = sorted(row, key=lambda pair: math.log(pair.seconds_a / pair.seconds_b))[cut : len(row) - cut]
        paces.append(np.log([[each.seconds_a / each.steps, each.seconds_b / each.steps] for each in kept]).mean(axis=0))
    of_a, of_b = np.exp(np.mean(paces, axis=0))
    return float(of_a), float(of_b)


def verdict(interval: Interval) -> Verdict:
    if interval.low > 1 + _UNNOTICED:
        return Verdict.FASTER
    if interval.high < 1 - _UNNOTICED:
        return Verdict.SLOWER
    if interval.low >= 1 - _UNNOTICED and interval.high <= 1 + _UNNOTICED:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


def decided(pairs: Sequence[Pair], looks: Sequence[int] = LOOKS) -> Verdict | None:
    """The verdict on a duel so far, or None where it has to go on. At the last look there always is one.

    Every look is a chance to be wrong, so each gets its share of ALPHA, and what came after the latest
    look does not count before the next. A duel that runs out of time before the last look is judged with
    `verdict(speedup(pairs, confidence=1 - ALPHA / len(looks)))`.
    """
    reached = [look for look in looks if look <= len(pairs)]
    if not reached:
        return None
    seen = verdict(speedup(pairs[: max(reached)], confidence=1 - ALPHA / len(looks)))
    return None if seen is Verdict.INCONCLUSIVE and len(reached) < len(looks) else seen


def futile(pairs: Sequence[Pair], most: int) -> bool:
    """Whether more pairs, up to `most`, are not worth a tune's time.

    B gains less than `LEAST_GAIN`, with nine in ten; or, going by what was seen (Spiegelhalter's predictive power,
    Controlled Clinical Trials 7, 1986), the odds that `most` pairs would show it FASTER are below `LEAST_POWER`.
    """
    if speedup(pairs, confidence=0.8).high < 1 + LEAST_GAIN:
        return True
    seen = speedup(pairs)
    if len(pairs) >= most or seen.high == math.inf:
        return False
    centre, half = math.log(seen.estimate), math.log(seen.high / seen.estimate)
    still_missing = math.log1p(_UNNOTICED) + half * math.sqrt(len(pairs) / most) - centre
    may_move = half / _NORMAL.inv_cdf(0.975) * math.sqrt(1 - len(pairs) / most)
    return 1 - _NORMAL.cdf(still_missing / max(may_move, 1e-12)) < LEAST_POWER


def noise_floor(control_pairs: Sequence[Pair]) -> float:
    """The smallest change, as a share, that could be seen here: from a duel of a program with itself."""
    interval = speedup(control_pairs)
    half = (interval.high - interval.low) / 2 / interval.estimate
    return max(half, abs(interval.estimate - 1))


def break_even_steps(setup_seconds: float, seconds_per_step_before: float, seconds_per_step_after: float) -> int | None:
    """The steps after which tuning and compiling have paid for themselves; None where they never do."""
    gain = seconds_per_step_before - seconds_per_step_after
    steps = setup_seconds / gain if gain > 0 else math.nan
    return math.ceil(max(steps, 0.0)) if math.isfinite(steps) else None


def factor(centre: float, half_width: float | None) -> Interval:
    """exp(centre ± half_width): from log-speedups to speedups. Without a width nothing is known but the centre."""
    if half_width is None:
        return Interval(0.0, _exp(centre), math.inf)
    return Interval(_exp(centre - half_width), _exp(centre), _exp(centre + half_width))


def product(speedups: Sequence[Interval]) -> Interval:
    """Of speedups that were measured independently."""
    halves = [math.log(each.high / each.low) / 2 for each in speedups]
    return factor(math.fsum(math.log(each.estimate) for each in speedups), math.hypot(*halves))


def combined(speedups: Sequence[Interval]) -> Interval:
    """What independent measurements of one speedup say together: each weighs by its precision."""
    weights = [(math.log(each.high / each.low) / 2) ** -2 for each in speedups]
    centre = math.fsum(w * math.log(each.estimate) for w, each in zip(weights, speedups, strict=True))
    return factor(centre / math.fsum(weights), math.fsum(weights) ** -0.5)


def other_work(control: Sequence[Pair], duel: Sequence[Pair]) -> bool:
    """Whether the new side's steps are other work than the old side's, so that their times say nothing of its speed.

    Steps may be of any length, as episodes are: in the control both sides' are, alike. Where a last bit differs, other
    episodes follow, and each process repeats them. Of a public actor-critic a fused optimizer, the control's ratios
    within 15 % and its own from 1.0 to 6.6, was told as 1.85x.

    Args:
        control: of the program against itself.
    """
    if min(len(control), len(duel)) < _FEWEST_TO_COMPARE:
        return False
    own, its = ([math.log(pair.seconds_a / pair.seconds_b) for pair in pairs] for pairs in (control, duel))
    lengths = [math.log(pair.seconds_a * pair.seconds_b / pair.steps**2) / 2 for pair in control]
    least = max(_OF_ANY_LENGTH, _TIMES_AS_FAR * _spread(own))
    return _spread(lengths) > _OF_ANY_LENGTH and _spread(its) > least


def _spread(values: Sequence[float]) -> float:
    """A standard deviation that few outliers, an evaluation say, do not alter: by the median absolute deviation."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


@dataclass(frozen=True)
class Resamples:
    """Draws of a row of looks, each looked at after the one before."""

    chosen: NDArray[np.intp]  # (resamples, count): the looks that each draw took
    stretch: float  # by how much the variance between draws is too small
    freedom: int  # degrees of freedom that Student's t has with it


def resample(count: int, rng: np.random.Generator) -> Resamples:
    """Draw `count` looks, 2 at the least, with replacement and many times over.

    Neighbouring looks resemble each other, so runs of them are drawn (a circular block bootstrap), and
    each run counts as one degree of freedom. Simulated, a 95 % interval covers 95 to 98 % of independent
    blocks, 94 % at an autocorrelation of 0.2 and 92 % at 0.4; with runs as long as the cube root, as is
    usual, it was 93 and 90 %.
    """
    run = round(2 / 3 * math.sqrt(count)) if count >= 10 else 1
    starts = rng.integers(0, count, (_RESAMPLES, -(-count // run), 1))
    chosen = ((starts + np.arange(run)) % count).reshape(_RESAMPLES, -1)[:, :count]
    return Resamples(chosen, count / (count - run), max(1, count // run - 1))


def trimmed_mean(looks: Array) -> Any:
    """The mean over the last axis, without the fifth of the looks at either end."""
    count = looks.shape[-1]
    cut = int(_TRIM * count)
    return np.sort(looks, axis=-1)[..., cut : count - cut].mean(axis=-1)


def _processes(pairs: Sequence[Pair]) -> tuple[list[Array], Array]:
    """ln(A / B) of every process's pairs, in the order in which they were measured, and their trimmed means."""
    if not pairs:
        raise ValueError("a speedup needs one pair of blocks at least")
    processes: dict[int, list[float]] = {}
    for pair in pairs:
        if not (0 < pair.seconds_a < math.inf and 0 < pair.seconds_b < math.inf):
            raise ValueError(f"a block takes more than 0 seconds, and these do not: {pair}")
        processes.setdefault(pair.process, []).append(math.log(pair.seconds_a / pair.seconds_b))
    rows = [np.array(ratios) for ratios in processes.values()]
    return rows, np.array([float(trimmed_mean(ratios)) for ratios in rows])


def _between(means: Array, confidence: float) -> float | None:
    """Half the width of Student's t interval on the means of processes; None for a single one."""
    count = len(means)
    if count < 2:
        return None
    return student.quantile(confidence, count - 1) * float(means.std(ddof=1)) / math.sqrt(count)


def _within(processes: Sequence[Array], confidence: float, rng: np.random.Generator) -> float | None:
    """Half the width that the blocks' noise alone gives to the mean of all processes; None for single blocks."""
    variance, freedom = 0.0, 0
    for ratios in processes:
        if len(ratios) < 2:
            continue
        drawn = resample(len(ratios), rng)
        variance += float(np.var(trimmed_mean(ratios[drawn.chosen]))) * drawn.stretch
        freedom += drawn.freedom
    if not freedom:
        return None
    return student.quantile(confidence, freedom) * math.sqrt(variance) / len(processes)


def _exp(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < 700 else math.inf
