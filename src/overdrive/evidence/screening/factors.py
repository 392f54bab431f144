"""What a screening is about: factors with their levels, rows of a design, and measured blocks. Plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overdrive.evidence.neighbours import busy, share_out

# The level of each factor in the order of the factors: 0 is off, n the factor's n-th label.
Row = tuple[int, ...]
OFF = 0


@dataclass(frozen=True)
class Factor:
    """What is switched: one label (on or off), or several that exclude each other, as a technique's settings do.

    A label names a candidate, and is in one factor only.
    """

    name: str
    levels: tuple[str, ...]  # labels, without "off"
    placebo: bool = False  # switching it does nothing: a control that rides along

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError(f"the factor {self.name} has no level")


@dataclass(frozen=True)
class Observation:
    """Some whole steps of one process under one row, measured in one go."""

    process: int  # any number that the blocks of one process have in common
    pair: int  # number of the fold-over pair, of which this is one half; no other pair of the screening has it
    row: Row
    log_seconds: float  # natural logarithm of the seconds per step (of batches of one size)
    at: float  # seconds on any clock that all blocks have in common: when it began
    dropped: bool = False  # something failed in it: it and the other half of its pair do not count
    disturbed: bool = False  # from outside: so do these, where most others were not (see `evidence.neighbours`)


def on_off(label: str, placebo: bool = False) -> Factor:
    """A factor that is one candidate."""
    return Factor(label, (label,), placebo)


def labels_of(factors: Iterable[Factor]) -> tuple[str, ...]:
    """All labels, in the order of the factors and their levels.

    Raises:
        ValueError: a label is there twice.
    """
    labels = tuple(label for factor in factors for label in factor.levels)
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels are there twice: {sorted({each for each in labels if labels.count(each) > 1})}")
    return labels


def rivals_of(label: str, factors: Iterable[Factor]) -> frozenset[str]:
    """The labels that it excludes: the other levels of its factor."""
    return frozenset(other for factor in factors if label in factor.levels for other in factor.levels if other != label)


def on_in(row: Row, factors: Sequence[Factor]) -> tuple[str, ...]:
    """The labels that are on in a row."""
    return tuple(factor.levels[level - 1] for factor, level in zip(factors, row, strict=False) if level != OFF)


def row_with(label: str, factors: Iterable[Factor]) -> Row:
    """The row in which it is on, and nothing else."""
    return tuple(each.levels.index(label) + 1 if label in each.levels else OFF for each in factors)


def complete(blocks: Iterable[Observation]) -> list[tuple[Observation, Observation]]:
    """The pairs that count, both halves there, earlier half first, in order of time.

    Raises:
        ValueError: a time is no number, or halves of one pair are of different processes.
    """
    halves: dict[int, list[Observation]] = {}
    for block in sorted(blocks, key=lambda each: each.at):
        if not math.isfinite(block.log_seconds):
            raise ValueError(f"the logarithm of a block's time must be a finite number, and is not: {block}")
        halves.setdefault(block.pair, []).append(block)
    pairs = []
    for number, both in halves.items():
        if len(both) > 2 or len({each.process for each in both}) > 1:
            raise ValueError(f"pair {number} must be two blocks of one process")
        if len(both) == 2 and not any(each.dropped for each in both):
            pairs.append((both[0], both[1]))
    quiet = [each for each in pairs if not (each[0].disturbed or each[1].disturbed)]
    return pairs if busy(share_out(len(quiet), len(pairs))) else quiet
