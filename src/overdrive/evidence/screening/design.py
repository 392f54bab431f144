"""The rows of a screening: fold-over pairs over the factors that are in the race.

A pair is a row and its mirror image. What both halves have in common cancels in the difference of their times: the
process, a drift, and every interaction of two factors (Box, Hunter and Hunter, "Statistics for Experimenters", ch. 6).

A factor of several levels folds over between two of them, in each pair another two, all equally often. An interaction
with a factor of two levels then cancels for it exactly; for the other one, as between two factors of several
levels, it cancels in the mean over the pairs of levels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

import numpy as np

from overdrive.evidence.screening.factors import OFF, Factor, Row, labels_of
from overdrive.evidence.screening.hadamard import Signs, columns


class Design:
    """Makes pairs of rows. Labels leave by no longer being active.

    Signs come from Hadamard matrices, whose columns go to factors anew and at random in each cycle: within a cycle
    main effects are told apart with the least error that there is, over cycles interactions are, too. With 20 factors
    their errors at 24 pairs are 0.43 of those of rows at random; at 48 pairs 0.77, at 192 pairs 0.95.
    """

    def __init__(self, factors: Sequence[Factor], shortest: int = 12) -> None:
        """`shortest`: pairs in a cycle, at the least. With 4, seven candidates take 8 pairs, which is right where a row
        is a whole process and there will not be many; interactions then look like each other."""
        labels_of(factors)
        self._shortest = shortest
        self.factors = tuple(factors)
        self._cycle: list[Signs] = []  # rows to come
        self._column: dict[str, int] = {}  # of each factor, in this cycle
        self._decks: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}

    def next_pair(self, active: Collection[str], rng: np.random.Generator) -> tuple[Row, Row]:
        """Two rows, in the order in which they are to be run.

        Args:
            active: labels that are in the race; all else is off.

        Raises:
            ValueError: a label is unknown.
        """
        if unknown := set(active) - set(labels_of(self.factors)):
            raise ValueError(f"no factor has the label {sorted(unknown)[0]}")
        playing = [each for each in self.factors if set(each.levels) & set(active)]
        signs = self._next_signs([factor.name for factor in playing], rng)
        rows = [[OFF] * len(self.factors), [OFF] * len(self.factors)]
        for index in rng.permutation(len(playing)):
            factor = playing[index]
            place = self.factors.index(factor)
            levels = (OFF, *(at for at, label in enumerate(factor.levels, 1) if label in active))
            both = self._fold(factor, levels, rng)
            first = int(signs[self._column[factor.name]] < 0)
            rows[0][place], rows[1][place] = both[first], both[1 - first]
        return tuple(rows[0]), tuple(rows[1])

    def _next_signs(self, names: Sequence[str], rng: np.random.Generator) -> Signs:
        if not self._cycle or not set(names) <= self._column.keys():
            signs = columns(len(names), self._shortest)
            self._cycle = list(signs[rng.permutation(len(signs))] * rng.choice((-1, 1), signs.shape[1]))
            self._column = dict(zip(names, map(int, rng.permutation(signs.shape[1])), strict=False))
        return self._cycle.pop()

    def _fold(self, factor: Factor, levels: tuple[int, ...], rng: np.random.Generator) -> tuple[int, int]:
        """The next two levels of a factor."""
        deck = self._decks.setdefault((factor.name, levels), [])
        if not deck:
            pairs = list(combinations(levels, 2))
            deck.extend(pairs[at] for at in rng.permutation(len(pairs)))
        one, other = deck.pop()
        return other, one
