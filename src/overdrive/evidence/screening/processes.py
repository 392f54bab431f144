"""How many processes a screening is spread over: effects differ between them, and starting one takes time."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.evidence.screening.effects import Effects

FEWEST = 3  # processes that are wanted in any case: fewer do not show how much effects differ
_MOST = 12  # in all
_AS_GOOD = 1.1  # of the least variance: the fewest processes that come so near it will do
_LEAST_PAIRS = 4.0  # of a process


def pairs_of_process(effects: Effects, pair_seconds: float, start_seconds: float, left_seconds: float) -> int:
    """How many pairs the latest process should have in all before a fresh one takes its place.

    That with which the effects come out best in the time that is left, if all further processes get as many. It is
    worth asking again at every look: noise and spread are then better known.

    Args:
        pair_seconds: what a pair of blocks takes, untimed steps included.
        start_seconds: from the start of a process to its first block, warming up included.
        left_seconds: of the whole screening.
    """
    counts = effects.pairs_by_process
    known, own = counts[:-1], counts[-1] if counts else 0
    shares: dict[float, float] = {}  # variance: pairs in each process
    for more in range(max(_MOST - len(counts), 0) + 1):
        each = (own + (left_seconds - more * start_seconds) / pair_seconds) / (more + 1)
        if each < max(_LEAST_PAIRS, own):
            break  # no time for so many
        if len(counts) + more <= FEWEST:
            shares.clear()  # what has fewer counts only where there is no time for this
        shares.setdefault(_variance(effects, [*known, *[each] * (more + 1)]), each)
    enough = _AS_GOOD * min(shares, default=0.0)
    return round(next((share for variance, share in shares.items() if variance <= enough), own))


def _variance(effects: Effects, counts: Sequence[float]) -> float:
    """Of an effect, after so many pairs in each process."""
    return 1 / sum(1 / (effects.spread**2 + 2 * effects.noise**2 / count) for count in counts if count > 0)
