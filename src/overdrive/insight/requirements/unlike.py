"""A step of many ranks that are not alike: each takes now this long, now that long, and some may be slow.

How much they vary is what was seen: each rank makes each of its steps as one of those that were noted, drawn for it by
itself. So nothing is longer than the longest of these, and a tail that they did not show is not there.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overdrive.core.rank_notes import STEP, Note
from overdrive.core.unlike_ranks import Slow
from overdrive.insight.requirements.timeline import Lasting, played
from overdrive.machine.pool.curve import Network

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Unlike:
    """Of a step, in seconds, in the mean: what a rank computes, what the network adds to that where all are alike, and
    what the slowest adds where they are not."""

    computing: float
    network: float
    slowest: float


def step_of(notes: Mapping[int, Sequence[Note]], network: Network, ranks: int, slow: Slow | None = None) -> Unlike:
    """
    Args:
        notes: of one of so many that are alike, or of some, in equal numbers.

    Raises:
        ValueError: see `played`.
    """
    alike = played(notes, network)
    chance = np.random.default_rng(0)
    factors = np.ones(ranks)
    seconds = step_with(notes, network, factors, chance)
    if slow:
        quick = (1 - slow.share) ** ranks  # none of them is slow
        factors[: max(1, chance.binomial(ranks, slow.share))] = slow.times
        chance.shuffle(factors)
        seconds = quick * seconds + (1 - quick) * step_with(notes, network, factors, chance)
    computing, same = statistics.fmean(alike.computing), statistics.fmean(alike.steps)
    return Unlike(computing, max(0.0, same - computing), max(0.0, seconds - same))


def step_with(
    notes: Mapping[int, Sequence[Note]], network: Network, factors: _Array, chance: np.random.Generator
) -> float:
    """Seconds of a step, in the mean. `factors`: of each rank, how many times as long it computes."""
    by_rank = dict(zip(notes, np.split(factors, len(notes)), strict=True))
    return statistics.fmean(played(notes, network, len(factors) // len(notes), _drawn(notes, by_rank, chance)).steps)


def longest_of(notes: Sequence[Note]) -> tuple[int, float]:
    """How many steps of the commonest kind were noted, and how many times their median the longest of them took."""
    kind = max(_kinds(notes), key=lambda kind: len(kind.rows))
    took = kind.rows.sum(axis=1)
    return len(took), float(took.max() / np.median(took))


@dataclass(frozen=True)
class _Kind:
    """Steps with the same notes, one after the other: `rows` (steps, notes) has what was computed before each."""

    starts: Sequence[int]
    rows: _Array


def _kinds(notes: Sequence[Note]) -> list[_Kind]:
    found: dict[object, list[range]] = {}
    start = 0
    for place, note in enumerate(notes):
        if note.operation == STEP:
            step = range(start, place + 1)
            look = tuple((each.operation, each.bytes, each.channel) for each in notes[start : place + 1])
            found.setdefault(look, []).append(step)
            start = place + 1
    rows = ([[notes[place].computed for place in step] for step in steps] for steps in found.values())
    return [
        _Kind([step[0] for step in steps], np.array(each)) for steps, each in zip(found.values(), rows, strict=True)
    ]


def _drawn(notes: Mapping[int, Sequence[Note]], factors: Mapping[int, _Array], chance: np.random.Generator) -> Lasting:
    """What each rank computes before each note: of a step that is drawn for it, of the same kind.

    Args:
        factors: by rank that was noted, of each that it stands for: how many times as long it computes.
    """
    before: dict[tuple[int, int], tuple[_Array, npt.NDArray[np.int64]]] = {}
    for rank, each in notes.items():
        for kind in _kinds(each):
            for start in kind.starts:
                picked = chance.integers(len(kind.rows), size=len(factors[rank]))
                for place in range(kind.rows.shape[1]):
                    before[rank, start + place] = kind.rows[:, place], picked

    def lasting(rank: int, place: int) -> _Array:
        seen, picked = before[rank, place]
        return seen[picked] * factors[rank]

    return lasting
