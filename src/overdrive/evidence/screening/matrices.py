"""Fold-over pairs as matrices: one row a pair, one column a label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.evidence.screening.factors import Factor, Observation, Row, complete, labels_of

Array = NDArray[np.floating[Any]]
Term = tuple[str, ...]  # (label,): what it adds by itself; (label, label): what the two add beside that, both on


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs in order of time; the first half is the one that ran earlier. 1 where a label is on, else 0."""

    labels: tuple[str, ...]
    first: Array  # (pairs, labels)
    second: Array  # (pairs, labels)
    before: Array  # (pairs, labels): what ran before the first half in the same process; NaN where nothing did
    times: Array  # (pairs, 2): log seconds per step of the halves
    process: NDArray[np.integer[Any]]  # (pairs,): from 0, in order of their first pair

    def __len__(self) -> int:
        return len(self.times)

    @property
    def differences(self) -> Array:
        """First half less second, (pairs,): all that both have in common is gone."""
        return self.times[:, 0] - self.times[:, 1]

    @property
    def sums(self) -> Array:
        """Of the two halves, (pairs,): what folds over is gone, interactions of two are left."""
        total: Array = self.times.sum(axis=1)
        return total

    def differences_of(self, term: Term) -> Array:
        """The column, (pairs,), that a term has in the differences."""
        return self._on(self.first, term) - self._on(self.second, term)

    def sums_of(self, term: Term) -> Array:
        """The column, (pairs,), that a term has in the sums."""
        return self._on(self.first, term) + self._on(self.second, term)

    def seen(self) -> dict[str, int]:
        """For each label, how many pairs compared it with another level of its factor."""
        return dict(zip(self.labels, map(int, (self.first != self.second).sum(axis=0)), strict=True))

    def _on(self, half: Array, term: Term) -> Array:
        on: Array = half[:, [self.labels.index(label) for label in term]].prod(axis=1)
        return on


def paired(blocks: Iterable[Observation], factors: Sequence[Factor]) -> Pairs:
    """The pairs that count, as matrices.

    Raises:
        ValueError: as `complete`.
    """
    blocks = sorted(blocks, key=lambda each: each.at)
    labels = labels_of(factors)
    pairs = complete(blocks)
    earlier: dict[int, Row] = {}  # by process, the latest row
    before: dict[int, Row] = {}  # by pair, what ran before its first half
    for block in blocks:
        if block.pair not in before:
            before[block.pair] = earlier.get(block.process, ())
        earlier[block.process] = block.row
    numbers = {process: at for at, process in enumerate(dict.fromkeys(first.process for first, _ in pairs))}
    nothing = np.full(len(labels), np.nan)
    size = (len(pairs), len(labels))
    return Pairs(
        labels,
        np.array([_indicators(first.row, factors) for first, _ in pairs]).reshape(size),
        np.array([_indicators(second.row, factors) for _, second in pairs]).reshape(size),
        np.array([_indicators(row, factors) if (row := before[first.pair]) else nothing for first, _ in pairs]).reshape(
            size
        ),
        np.array([[first.log_seconds, second.log_seconds] for first, second in pairs]).reshape(-1, 2),
        np.array([numbers[first.process] for first, _ in pairs], dtype=int),
    )


def _indicators(row: Row, factors: Sequence[Factor]) -> Array:
    on: list[float] = []
    for place, factor in enumerate(factors):
        on += [float(at == row[place]) for at in range(1, len(factor.levels) + 1)]
    return np.array(on)
