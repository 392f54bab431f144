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

Conflicts = Collection[frozenset[str]]  # sets of two labels that must not be on together


class Design:
    """Makes pairs of rows. Factors may join at any time (`add`), and labels leave by no longer being active.

    Signs come from Hadamard matrices, whose columns go to factors anew and at random in each cycle: within a cycle
    main effects are told apart with the least error that there is, over cycles interactions are, too. With 20 factors
    their errors at 24 pairs are 0.43 of those of rows at random; at 48 pairs 0.77, at 192 pairs 0.95.
    """

    def __init__(self, factors: Sequence[Factor], conflicts: Conflicts = (), shortest: int = 12) -> None:
        """`shortest`: pairs in a cycle, at the least. With 4, seven candidates take 8 pairs, which is right where a row
        is a whole process and there will not be many; interactions then look like each other."""
        labels_of(factors)
        self._shortest = shortest
        self.factors = tuple(factors)
        self.conflicts = frozenset(conflicts)
        self._cycle: list[Signs] = []  # rows to come
        self._column: dict[str, int] = {}  # of each factor, in this cycle
        self._decks: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}

    def add(self, factors: Sequence[Factor]) -> None:
        """Take in more factors; in the rows so far they were off."""
        labels_of((*self.factors, *factors))
        self.factors = (*self.factors, *factors)

    def next_pair(
        self, active: Collection[str], rng: np.random.Generator, held: Collection[str] = ()
    ) -> tuple[Row, Row]:
        """Two rows, in the order in which they are to be run.

        Args:
            active: labels that are in the race; all else is off.
            held: labels that are on in both rows.

        Raises:
            ValueError: a label is unknown, or two that are held exclude each other.
        """
        if unknown := {*active, *held} - set(labels_of(self.factors)):
            raise ValueError(f"no factor has the label {sorted(unknown)[0]}")
        playing = [each for each in self.factors if set(each.levels) & set(active) and not set(each.levels) & set(held)]
        signs = self._next_signs([factor.name for factor in playing], rng)
        rows = [[OFF] * len(self.factors), [OFF] * len(self.factors)]
        self._hold(rows, held)
        for index in rng.permutation(len(playing)):
            factor = playing[index]
            place = self.factors.index(factor)
            levels = [OFF, *(at for at, label in enumerate(factor.levels, 1) if label in active)]
            both = self._fold(factor, levels, rows, rng)
            first = int(signs[self._column[factor.name]] < 0)
            rows[0][place], rows[1][place] = both[first], both[1 - first]
        return tuple(rows[0]), tuple(rows[1])

    def _next_signs(self, names: Sequence[str], rng: np.random.Generator) -> Signs:
        if not self._cycle or not set(names) <= self._column.keys():
            signs = columns(len(names), self._shortest)
            self._cycle = list(signs[rng.permutation(len(signs))] * rng.choice((-1, 1), signs.shape[1]))
            self._column = dict(zip(names, map(int, rng.permutation(signs.shape[1])), strict=False))
        return self._cycle.pop()

    def _fold(
        self, factor: Factor, levels: Sequence[int], rows: Sequence[Sequence[int]], rng: np.random.Generator
    ) -> tuple[int, int]:
        """The next two levels of a factor; where one excludes what this pair has already, others, or twice off."""
        allowed = tuple(level for level in levels if level == OFF or self._goes_with(factor.levels[level - 1], rows))
        if len(allowed) < 2:
            return OFF, OFF
        deck = self._decks.setdefault((factor.name, allowed), [])
        if not deck:
            pairs = list(combinations(allowed, 2))
            deck.extend(pairs[at] for at in rng.permutation(len(pairs)))
        one, other = deck.pop()
        return other, one

    def _goes_with(self, label: str, rows: Sequence[Sequence[int]]) -> bool:
        if not self.conflicts:
            return True
        present = {
            factor.levels[level - 1]
            for row in rows
            for factor, level in zip(self.factors, row, strict=True)
            if level != OFF
        }
        return not any(frozenset((label, other)) in self.conflicts for other in present)

    def _hold(self, rows: Sequence[list[int]], held: Collection[str]) -> None:
        for place, factor in enumerate(self.factors):
            chosen = [level for level, label in enumerate(factor.levels, 1) if label in held]
            if len(chosen) > 1 or any(not self._goes_with(factor.levels[level - 1], rows) for level in chosen):
                raise ValueError(f"{factor.levels[chosen[0] - 1]} is held beside another that it excludes")
            for row in rows:
                row[place] = chosen[0] if chosen else OFF
