"""The honest end of a search: the chosen configuration against the defaults, on seeds that no run of it has seen."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

from overdrive.core.interval import Interval
from overdrive.core.search_result import SeedComparison, Tried
from overdrive.core.settings import Value
from overdrive.evidence.student import paired
from overdrive.search.search import FEWEST_PAIRS, SLOWER, Search, key_of

_ALPHA = 0.025  # on either side


class Comparison:
    def __init__(self, search: Search, defaults: Tried, chosen: Tried) -> None:
        self._search, self._defaults, self._chosen = search, defaults, chosen

    def made(self) -> SeedComparison:
        """Both under the same seeds, none of which the search has seen."""
        arms = self._arms()
        goal, patience = self._search.goal, SLOWER * self._defaults.seconds
        apparent = (goal.score(self._defaults, patience) or 0.0) - (goal.score(self._chosen, patience) or 0.0)
        return SeedComparison(
            tuple(range(1, len(arms) + 1)),
            tuple(one for one, _ in arms),
            tuple(other for _, other in arms),
            self._gain(arms),
            apparent,
        )

    def _arms(self) -> list[tuple[Tried, Tried]]:
        """Pairs of runs. Each process takes the next one that nobody is at; in the end all have all of them."""
        sharing, seeds = self._search.engine.sharing, range(1, 1 + self._search.pairs(self._defaults))
        others = 0
        for seed in seeds:
            with sharing.claim(self._file(seed)) as mine:
                if not mine:
                    others += 1
                elif not self._pair(seed, others):
                    break
        arms: list[tuple[Tried, Tried]] = []
        for seed in seeds:
            with sharing.turn(self._file(seed), self._waits):
                pair = self._pair(seed)
            if pair is None:
                break
            arms.append(pair)
        return arms

    def _waits(self) -> None:
        self._search.tell("waiting for a pair of the comparison that another process is at")

    def _pair(self, seed: int, others: int = 0) -> tuple[Tried, Tried] | None:
        """As it was made, or made now; None where the budget does not hold another one.

        Args:
            others: pairs that other processes are at.
        """
        if known := self._known(seed):
            return known
        search = self._search
        each = sum(run.seconds for run in self._known(seed - 1) or (self._defaults, self._chosen))
        left = search.budget - search.engine.seconds_remembered() - others * each
        if seed > FEWEST_PAIRS and each > left:
            return None
        search.tell(f"comparison on fresh seeds, pair {seed} of {search.pairs(self._defaults)}")
        return self._run({}, seed), self._run(self._chosen.values, seed)

    def _known(self, seed: int) -> tuple[Tried, Tried] | None:
        one, other = (self._search.engine.recall(_name(values, seed)) for values in ({}, self._chosen.values))
        return (one, other) if one and other else None

    def _run(self, values: Mapping[str, Value], seed: int) -> Tried:
        known = self._search.engine.recall(_name(values, seed))
        if known is None:
            run = self._search.judged or self._search.run
            known = run(values, seed, SLOWER * self._defaults.seconds + 5.0, None)
            self._search.engine.remember(_name(values, seed), known)
        return known

    def _file(self, seed: int) -> str:
        """By which a pair is claimed."""
        return f"pair-{seed}-{zlib.crc32(key_of(self._chosen.values).encode()):08x}"

    def _gain(self, arms: Sequence[tuple[Tried, Tried]]) -> Interval:
        """Endless where a run failed or has no metric.

        A default that never reached the target counts with the time that it ran, which favours the defaults; a chosen
        one that never did establishes nothing.
        """
        import numpy as np

        goal = self._search.goal
        if any(run.state != "complete" for pair in arms for run in pair):
            return Interval(-math.inf, math.nan, math.inf)
        scores: list[tuple[float | None, float | None]]
        if goal.target is not None:
            scores = [(one.reached or one.seconds, other.reached) for one, other in arms]
        else:
            scores = [(goal.score(one, 0.0), goal.score(other, 0.0)) for one, other in arms]
        if any(each is None or not math.isfinite(each) for pair in scores for each in pair):
            return Interval(-math.inf, math.nan, math.inf)
        table = np.array(scores, dtype=float)
        return paired(table[:, 1], table[:, 0], _ALPHA)


def _name(values: Mapping[str, Value], seed: int) -> str:
    """By which a run of the comparison is remembered."""
    return f"seed {seed}: {key_of(values)}"
