"""Who else uses this machine: what makes a tune's numbers less certain is said in its report."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from overdrive.core.objective import size
from overdrive.evidence.neighbours import (
    MOST_BIAS,
    MOST_WAITING,
    busy,
    often,
    others,
    share_crowded,
    share_disturbed,
)
from overdrive.evidence.speed import Pair, Verdict
from overdrive.machine.cpu import busy_share
from overdrive.machine.gpu import memory_in_use
from overdrive.trials.duel import Duel

# One other busy program on two cores has been seen to slow parallel operations tenfold, at random.
_BUSY = 0.2
_STEADILY = 0.5  # of all cores, from which on the machine is not this tune's
_CROWDED = 0.1  # of the pairs, below which nobody needs to hear of it
_SHARED_GPU = 1 << 30  # bytes; a driver's own context takes half of that


def untold(control: Duel) -> list[str]:
    """A sentence where this machine does not tell how long a block waited for a core."""
    if not control.pairs or any(pair.waited is not None for pair in control.pairs):
        return []
    return ["How long a block waited for other programs is not told here: none is left out for their sake."]


def held(control: Duel, of_all: float = 0.0) -> str:
    """What others did to a tune, in words; empty where that is not the cause of anything.

    A side that waits in all of its blocks looks as if it were used to it: beside three busy processes none of public
    nanoGPT's was left out, whose steps took 695 ms in place of 28. Then what others use tells.

    Args:
        of_all: the share of the pairs of blocks of all duels that they disturbed, where there were some.
    """
    share = max(of_all, share_disturbed(control.pairs))
    if often(share):
        return f"others held the cores in {share:.0%} of what was measured"
    used = _all_the_while(control.pairs)
    return f"other programs use {used:.0%} of the cores" if used else ""


def least_believed(duel: Duel, floor: float | None) -> float:
    """What a speedup that was measured beside others has to exceed; 0 where these left it alone.

    Of public llama2.c at a load of 10, processes of the untouched program differed by more than twice, and `allocator`
    came out at 6.59x [1.39, 31.28].

    Args:
        floor: the noise floor, by which the program differed from itself.
    """
    theirs = _all_the_while(duel.kept()) or busy(share_disturbed(duel.pairs))
    return max(MOST_BIAS, 1 + (floor or 0.0)) if theirs else 0.0


def _all_the_while(pairs: Sequence[Pair]) -> float:
    """The share of all cores that others used where they had most of them, and a side waited in most blocks; else 0."""
    waited = [max(each.waited) for each in pairs if each.waited is not None]
    used = _of_all_cores(others(pairs))
    return used if used > _STEADILY and waited and statistics.median(waited) > MOST_WAITING else 0.0


def _of_all_cores(used: float | None) -> float:
    return (used or 0.0) / (os.cpu_count() or 1)


def disturbed(duel: Duel) -> list[str]:
    """What other programs did to a duel."""
    share, used = share_disturbed(duel.pairs), others(duel.kept())
    notes = []
    if (slowed := share_crowded(duel.pairs)) > _CROWDED:
        notes.append(
            f"In {slowed:.0%} of the pairs of blocks of the confirmation this machine's cores slowed each other down "
            "more than usual, and no program here was to blame: its host may have had them share one core."
        )
    if busy(share):
        notes.append(
            f"In {share:.0%} of the pairs of blocks of the confirmation others held the cores, so that all count, and "
            f"a gain below {MOST_BIAS:g} could be their doing."
        )
        if duel.verdict is Verdict.INCONCLUSIVE:
            notes.append("Tune when the machine is quieter.")
        return notes
    if share:
        notes.append(f"{share:.0%} of the pairs of blocks of the confirmation were left out: others held the cores.")
    if (steadily := _of_all_cores(used)) > _BUSY:
        notes.append(
            f"In those that were kept other programs used {steadily:.0%} of all cores: on a quiet machine the plan "
            "may gain more, or less."
        )
    return notes


def neighbours() -> list[str]:
    """A sentence for each kind of neighbour."""
    notes = []
    by_others = busy_share()
    if by_others > _BUSY:
        notes.append(
            f"Other programs were using {by_others:.0%} of the cores when the tune began, which makes intervals wide."
        )
    taken = memory_in_use()
    if taken > _SHARED_GPU:
        notes.append(f"Other processes held {size(taken)} of a GPU's memory when the tune began.")
    return notes
