"""Which pairs of blocks a neighbour disturbed: those in which a side waited for a core, as it does not usually, or in
which the cores slowed each other down more than usual (see `machine.crowding`).

Bursts that slow both sides alike only add noise. Where one side uses more threads than the other they change the ratio
itself, and more pairs do not mend that. Simulated, with a load in bursts of 0.3 s that slows one side 2.0 and the other
1.5 times, two equal sides come out as 1.04 (called FASTER: 5 %) where it works in 30 % of the time, as 1.15 (65 %) in
60 %. Without the pairs in which a side waited it is 1.00 (0 %), and 39 and 79 % of them go.

Where more than three in four would go, what is usual is not known any more: all pairs count, their intervals are as
wide as the machine makes them, and only gains beyond what unequal slowing can do are believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from overdrive.core.records import Block
from overdrive.evidence.speed import Pair

MOST_WAITING = 0.05  # of a block's time, beyond what is usual for that side
# What others use of one core, below which they are not to blame: /proc/stat counts in ticks of a tenth of a block.
_FEWEST_OTHERS = 0.1
# A side with more threads than cores waits for itself in every block. As usual counts what four in five exceed, so that
# a neighbour may come in three of four.
_USUAL = 20.0  # per cent
_OF_USUAL = 0.1  # a side that waits for itself varies in that: by 2 % of 1.5 cores where two threads spun on two
# As usual is the median, from which looks at quiet cores differ by 0.2 at most, and two on one core are at 1.7.
_MOST_CROWDED = 1.3
_FEWEST_OF_A_PROCESS = 4  # pairs that tell what is usual for it: the only one of a process is usual by itself
_UNKNOWN = (math.inf, math.inf)  # what others use, where nobody tells: they may be to blame
# Of the pairs, beyond which all of them count. With a half, of the example beside a process that took a core on and
# off, quiet pairs at 1.65x were lost in disturbed ones, in which a step took five to ten times as long.
_MOST_LEFT_OUT = 0.75
_OFTEN = 0.5
MOST_BIAS = 1.33  # a ratio may then be so many times too large: one side is slowed 2.0, the other 1.5 times


def undisturbed(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs in which neither side waited for others; all where nobody could tell."""
    told: dict[int, list[tuple[float, float]]] = {}
    for pair in pairs:
        if pair.waited is not None:
            told.setdefault(pair.process, []).append(pair.waited)
    everyone = [each for row in told.values() for each in row]
    rows = {process: row if len(row) >= _FEWEST_OF_A_PROCESS else everyone for process, row in told.items()}
    usual = {process: np.percentile(np.array(row), _USUAL, axis=0) for process, row in rows.items()}
    return [
        pair
        for pair in pairs
        if not _crowded(pair)
        and (pair.waited is None or not any(map(_disturbed, pair.waited, usual[pair.process], pair.others or _UNKNOWN)))
    ]


def counted(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that a ratio is made of."""
    kept = undisturbed(pairs)
    return list(pairs) if busy(share_out(len(kept), len(pairs))) else kept


def share_out(kept: int, pairs: int) -> float:
    """The share of the pairs that is not kept."""
    return 1 - kept / pairs if pairs else 0.0


def busy(share: float) -> bool:
    """Whether a neighbour disturbed such a share of the pairs that all count."""
    return share > _MOST_LEFT_OUT


def often(share: float) -> bool:
    """Whether a neighbour disturbed such a share of the pairs that it is to be told why little was established."""
    return share > _OFTEN


def disturbed(block: Block) -> bool:
    """Whether a block of a process that goes on all the time was disturbed: no usual waiting is known for each row of
    switches, so that what waits for itself as well counts, where others were at work. False where nobody can tell."""
    if block.crowded is not None and block.crowded > _MOST_CROWDED:
        return True
    waited, others = block.waited, block.others
    return waited is not None and others is not None and waited > MOST_WAITING and others > _FEWEST_OTHERS


def share_disturbed(pairs: Sequence[Pair]) -> float:
    """The share of the pairs that a neighbour disturbed."""
    return share_out(len(undisturbed(pairs)), len(pairs))


def share_crowded(pairs: Sequence[Pair]) -> float:
    """The share of the pairs in which the cores slowed each other down more than usual."""
    return share_out(sum(not _crowded(pair) for pair in pairs), len(pairs))


def others(pairs: Sequence[Pair]) -> float | None:
    """The cores that other programs used on average; None where it is not known."""
    told = [each for pair in pairs for each in pair.others or ()]
    return float(np.mean(told)) if told else None


def _crowded(pair: Pair) -> bool:
    return pair.crowded is not None and max(pair.crowded) > _MOST_CROWDED


def _disturbed(waited: float, usual: float, by_others: float) -> bool:
    return waited - usual > max(MOST_WAITING, usual * _OF_USUAL) and by_others > _FEWEST_OTHERS
