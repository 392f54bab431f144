"""Compares blocks of the same steps in two copies of a program, one left alone and one timed.

Two processes of one program differ by several percent for as long as they live, and in a block only one of them is
timed. So blocks are compared with those of the same pair of processes with the same one timed, and the two ways round
count alike: what is usual for one process is on the timed side in one, on the plain side in the other, and falls out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A block whose ratio's logarithm is further from the usual one was disturbed; if it is nearer, it was not.
_DISTURBED, _UNDISTURBED = 0.22, 0.05
# Seconds. In steps of 0.5 ms one costs 1.5 us with the seam that it hangs on: what Python runs once a step has left the
# cache.
_DEAREST_LOOK = 5e-6
_ENOUGH_PROCESSES = 4  # pairs of, for their spread to say something


@dataclass
class BlockPair:
    """The same steps of both copies, in seconds; of the one that is timed the phases, and looks at the clock, too."""

    steps: int
    plain: float
    timed: float
    phases: Mapping[str, float]
    looks: Mapping[str, float]
    processes: int = 0  # which pair of them
    which: int = 0  # of the two is timed

    @property
    def off(self) -> float:
        """The timed copy's time against the plain one's, as a ratio's logarithm."""
        return math.log(self.timed / self.plain)


def ratio(blocks: Sequence[BlockPair]) -> float:
    """The timed side's time as a ratio to the plain one's."""
    groups, weights = _grouped(blocks)
    return math.exp(sum(weight * _log_ratio(group) for group, weight in zip(groups, weights, strict=True)))


def standard_error(blocks: Sequence[BlockPair]) -> float:
    """Of `ratio`, relative to it: from how far blocks are off those of their own group, or pairs of processes off each
    other, whichever says more."""
    groups, weights = _grouped(blocks)
    free = sum(len(group) - 1 for group in groups)
    if free < 1:
        return 1.0
    off, error = 0.0, 0.0
    for group, weight in zip(groups, weights, strict=True):
        usual = math.exp(_log_ratio(group))
        off += sum((block.timed / usual / block.plain - 1) ** 2 for block in group)
        whole = sum(block.plain for block in group)
        error += weight**2 * sum((block.plain / whole) ** 2 for block in group)
    return max(math.sqrt(off / free * error), _between_processes(groups))


def _between_processes(groups: Sequence[Sequence[BlockPair]]) -> float:
    """The standard error between pairs of processes, from the ratio of each; 0 where there are too few."""
    pairs: dict[int, list[float]] = {}
    for group in groups:
        pairs.setdefault(group[0].processes, []).append(_log_ratio(group))
    means = [statistics.mean(each) for each in pairs.values()]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) >= _ENOUGH_PROCESSES else 0.0


def untimed(phases: Mapping[str, float], looks: Mapping[str, float], step: float) -> dict[str, float]:
    """The phases without what it cost to time them, where the plain side's step tells what that is.

    Each look at the clock costs the same, in whatever phase, and some microseconds at the most. What is between the two
    sides besides is none of theirs, and stays: the parts are then seen not to add up to the step.
    """
    whole = sum(looks.values())
    look = max(0.0, min(_DEAREST_LOOK, (sum(phases.values()) - step) / whole)) if whole else 0.0
    return {phase: max(0.0, seconds - look * looks.get(phase, 0)) for phase, seconds in phases.items()}


def undisturbed(blocks: Sequence[BlockPair]) -> list[BlockPair]:
    """Without those in which something else took the processor from one of the two: whose ratio is as far from the
    usual one of their group as chance hardly brings it, on either side."""
    usual = {key: statistics.median(each.off for each in group) for key, group in _by_kind(blocks).items()}
    away = [abs(each.off - usual[each.processes, each.which]) for each in blocks]
    spread = statistics.median(away) / 0.6745 if away else 0.0  # as the normal distribution's sigma
    limit = min(_DISTURBED, max(_UNDISTURBED, 3 * spread))
    return [block for block, each in zip(blocks, away, strict=True) if each <= limit] or list(blocks)


def _log_ratio(group: Sequence[BlockPair]) -> float:
    return math.log(sum(block.timed for block in group) / sum(block.plain for block in group))


def _by_kind(blocks: Sequence[BlockPair]) -> dict[tuple[int, int], list[BlockPair]]:
    found: dict[tuple[int, int], list[BlockPair]] = {}
    for block in blocks:
        found.setdefault((block.processes, block.which), []).append(block)
    return found


def _grouped(blocks: Sequence[BlockPair]) -> tuple[list[list[BlockPair]], list[float]]:
    """Groups, and what each counts: a pair of processes by its blocks, and both ways round alike. Pairs that were seen
    one way round only count where there are no others."""
    found = _by_kind(blocks)
    both = {key: group for key, group in found.items() if (key[0], 1 - key[1]) in found} or found
    many: dict[int, int] = {}
    ways: dict[int, int] = {}
    for (processes, _), group in both.items():
        many[processes] = many.get(processes, 0) + len(group)
        ways[processes] = ways.get(processes, 0) + 1
    total = sum(many.values())
    return list(both.values()), [many[key[0]] / total / ways[key[0]] for key in both]
