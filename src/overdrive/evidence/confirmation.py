"""How many pairs of processes a confirmation takes, fixed before it begins; and what may be told of its outcome.

Two processes of one program differ for all their lives. How much is estimated from all duels of a tune: those of
several pairs of processes, and the program against itself, whose truth is known to be no gain at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overdrive.core.interval import Interval
from overdrive.evidence import student
from overdrive.evidence.speed import Pair, Verdict, factor, process_means, verdict

FEWEST, MOST = 3, 8  # pairs of processes
# What is made where a tune has time for it. Of a gain of 1.3 where processes differ by 3 %, the interval of three is
# told as it is in 14 %, of four in 74 % (`told`).
USUAL = 4
# What is wanted: an interval of half a width of 1 %, or of a tenth of the gain, both in log-speedup.
_WANTED, _WANTED_SHARE = 0.01, 0.1
# A tune sees few pairs of processes. Where they differ little, their variance is shrunk towards that of processes that
# differ by 3 %, which counts as much as six pairs; where they differ by more it stays. Simulated with six duels of two
# pairs, what one pair says then covers the truth in 92 % and more from 0 to 20 %; shrunk at all times in 88 % at 10 %.
_USUAL_VARIANCE = 2 * 0.03**2
_USUAL_FREEDOM = 6
_FLOOR = 1.01  # what FASTER claims at the least: see `speed.verdict`
# By this many half-widths the estimate has to lie above the floor for the lower end to be told as it is, by the number
# of pairs of processes. See `told`.
_CLEARANCE = {3: 6.0, 4: 3.0}
_USUAL_CLEARANCE = 2.5


@dataclass(frozen=True)
class Spread:
    """How much pairs of processes differ in ln(A / B) beyond the noise of their blocks."""

    variance: float = _USUAL_VARIANCE  # of one pair; twice that of one process
    freedom: int = _USUAL_FREEDOM
    block_variance: float = 0.0  # of one pair of blocks, in the control


def spread_of(
    control: Sequence[Pair], duels: Iterable[Sequence[Pair]], processes: tuple[float, int] = (0.0, 0)
) -> Spread:
    """A moment estimate, pooled over all duels, less what the noise of blocks explains.

    Args:
        control: pairs of the program against itself.
        duels: pairs of each of the others; those of one pair of processes say nothing here.
        processes: variance of log seconds between single processes of a screening, and its degrees of freedom.
    """
    freedom = processes[1]
    squares = 2 * processes[0] * freedom
    of_control = process_means(control)
    for each in of_control:
        squares += each.mean**2 - each.variance
        freedom += 1
    for duel in duels:
        means = process_means(duel)
        if len(means) < 2:
            continue
        centre = math.fsum(each.mean for each in means) / len(means)
        by_blocks = math.fsum(each.variance for each in means) / len(means)
        squares += math.fsum((each.mean - centre) ** 2 for each in means) - (len(means) - 1) * by_blocks
        freedom += len(means) - 1
    pooled = (squares + _USUAL_FREEDOM * _USUAL_VARIANCE) / (freedom + _USUAL_FREEDOM)
    seen = squares / max(1, freedom)
    blocks = math.fsum(each.variance * each.blocks for each in of_control) / max(1, len(of_control))
    if seen > _USUAL_VARIANCE:
        return Spread(seen, freedom + 1, blocks)
    return Spread(max(pooled, 0.0), freedom + _USUAL_FREEDOM, blocks)


def pairs_needed(spread: Spread, gain: float, blocks: int) -> int:
    """The fewest pairs of processes whose interval is as narrow as wanted; nothing that they show changes it.

    Args:
        gain: that the search came to, 1.25 for a quarter faster.
        blocks: pairs of blocks in each pair of processes.
    """
    sd = math.sqrt(spread.variance + spread.block_variance / blocks)
    wanted = max(_WANTED, _WANTED_SHARE * abs(math.log(gain)))
    enough = (n for n in range(FEWEST, MOST) if student.quantile(0.95, n - 1) * sd / math.sqrt(n) <= wanted)
    return next(enough, MOST)


def pairs_to_tell(spread: Spread, gain: float) -> int:
    """The fewest pairs of processes that tell such a gain from none, where it is as large as it looks: at 1.25 times
    the half-width of their interval."""
    wanted = abs(math.log(gain)) / 1.25
    half = student.quantile(0.95, spread.freedom) * math.sqrt(spread.variance)
    return max(2, math.ceil((half / max(wanted, 1e-3)) ** 2))


def told(interval: Interval, processes: int) -> Interval:
    """What is published of a 95 % interval of so many pairs of processes.

    Only plans that came out FASTER are published, and of small gains on rough machines only those that had luck: of a
    gain of 1.05 where processes differ by 20 %, 4 % are, and two thirds of these intervals lie above the truth. So the
    lower end is told as 1.01, which is all that the verdict claims, unless the estimate lies well above: by 2.5
    half-widths, by 3 of four pairs of processes and 6 of three, whose own spread is known badly; of fewer it never is.
    A truth that lies that far up is found nearly always, and its interval is no matter of luck; of a smaller one the
    interval holds all down to 1.01. By calculation for normal processes, at least 93 % of what is published covers any
    truth above 1.01.
    """
    if verdict(interval) is not Verdict.FASTER or not math.isfinite(interval.high):
        return interval
    half = math.log(interval.high / interval.estimate)
    clear = math.log(interval.estimate / _FLOOR) >= _CLEARANCE.get(processes, _USUAL_CLEARANCE) * half
    return interval if clear and processes >= FEWEST else Interval(_FLOOR, interval.estimate, interval.high)


def of_any_process(interval: Interval, spread: Spread, processes: int) -> Interval:
    """An interval that speaks of these processes only, widened by how much others differ.

    For what is told where no time was left to confirm it.
    """
    if not 0 < interval.low <= interval.high < math.inf:
        return interval
    within = math.log(interval.high / interval.low) / 2
    between = student.quantile(0.95, spread.freedom) * math.sqrt(spread.variance / max(1, processes))
    return factor(math.log(interval.estimate), math.hypot(within, between))
