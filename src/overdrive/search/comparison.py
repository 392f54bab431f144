"""The honest end of a search: the chosen configuration against the defaults, on seeds that no run of it has seen."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence

from overdrive.core.interval import Interval
from overdrive.core.search_result import SeedComparison, Tried, are_alike
from overdrive.core.settings import Value
from overdrive.evidence.student import paired
from overdrive.search.search import FEWEST_PAIRS, SLOWER, Search, key_of

_ALPHA = 0.025  # on either side
_SAME = 1e-9  # of gains, as a share of the metric
_LONGER = 1.1  # times the defaults' seconds: less is within what times of single runs vary by


class Comparison:
    def __init__(self, search: Search, defaults: Tried, chosen: Tried) -> None:
        self._search, self._defaults, self._chosen = search, defaults, chosen

    def made(self) -> SeedComparison:
        """Both under the same seeds, none of which the search has seen."""
        arms = self._arms()
        return SeedComparison(
            tuple(range(1, len(arms) + 1)),
            tuple(one for one, _ in arms),
            tuple(other for _, other in arms),
            self._gain(arms),
            self._apparent(),
            self._at_equal_time(arms),
            self._costs(arms),
        )

    def _apparent(self) -> float:
        """The gain in the search, counted as that of the pairs: a default that never reached the target has the time
        that it ran, and not the multiple of it by which such a run is put behind all others."""
        goal, runs = self._search.goal, (self._defaults, self._chosen)
        if goal.target is not None:
            one, other = (run.reached or run.seconds for run in runs)
        else:
            one, other = (goal.score(run, 0.0) or 0.0 for run in runs)
        return one - other

    def _arms(self) -> list[tuple[Tried, Tried]]:
        """Pairs of runs. Each process takes the next one that nobody is at; in the end all have all of them."""
        sharing, seeds = self._search.engine.sharing, range(1, 1 + self._search.pairs(self._defaults))
        others = 0
        for seed in seeds:
            with sharing.claim(self._file(seed)) as mine:
                if not mine:
                    others += 1
                elif not (pair := self._pair(seed, others)) or not _tells(pair):
                    break
        arms: list[tuple[Tried, Tried]] = []
        for seed in seeds:
            with sharing.turn(self._file(seed), self._waits):
                pair = self._pair(seed)
            if pair is None:
                break
            arms.append(pair)
            if not _tells(pair):  # nor will the others
                break
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
        if seed % 2:
            return self._run({}, seed, self._defaults), self._run(self._chosen.values, seed, self._chosen)
        # In turn: where a machine becomes slower or faster meanwhile, one that always came second would differ by it.
        second = self._run(self._chosen.values, seed, self._chosen)
        return self._run({}, seed, self._defaults), second

    def _known(self, seed: int) -> tuple[Tried, Tried] | None:
        one, other = (self._search.engine.recall(_name(values, seed)) for values in ({}, self._chosen.values))
        return (one, other) if one and other else None

    def _run(self, values: Mapping[str, Value], seed: int, before: Tried) -> Tried:
        """`before`: the run of the same configuration in the search.

        One that takes four times as long as that is given up where the budget is used up.
        """
        known = self._search.engine.recall(_name(values, seed))
        if known is None:
            run = self._search.judged or self._search.run
            left = self._search.budget - self._search.engine.seconds_remembered()
            most, patience = (SLOWER * each.seconds + 5.0 for each in (self._defaults, before))
            known = run(values, seed, min(most, max(left, patience)), None)
            self._search.engine.remember(_name(values, seed), known)
        return known

    def _file(self, seed: int) -> str:
        """By which a pair is claimed."""
        return f"pair-{seed}-{zlib.crc32(key_of(self._chosen.values).encode()):08x}"

    def _gain(self, arms: Sequence[tuple[Tried, Tried]]) -> Interval:
        """Endless where a run failed or has no metric, and where seeds change nothing.

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
        gains = table[:, 0] - table[:, 1]
        if self._is_one(arms):  # no spread of seeds is known: the interval would be one of nothing
            return Interval(-math.inf, float(gains.mean()), math.inf)
        found = paired(table[:, 1], table[:, 0], _ALPHA)
        if goal.target is None and np.ptp(gains) <= _SAME * np.abs(table).max():
            step = _step_of(arms)  # the gain is the same in each pair, as far as the metric tells
            return Interval(found.estimate - step, found.estimate, found.estimate + step)
        return found

    def _at_equal_time(self, arms: Sequence[tuple[Tried, Tried]]) -> Interval | None:
        """The gain by when the default run of each pair was over, where the chosen one takes longer."""
        import numpy as np

        goal = self._search.goal
        longer = sum(other.seconds for _, other in arms) > _LONGER * sum(one.seconds for one, _ in arms)
        if goal.timed or not longer or self._is_one(arms) or not any(other.seen for _, other in arms):
            return None
        pairs = [(one.metric, other.metric_by(one.seconds)) for one, other in arms]
        signed = [(goal.signed(a), goal.signed(b)) for a, b in pairs if a is not None and b is not None]
        if len(signed) < len(arms):
            return Interval(-math.inf, math.nan, math.inf)
        table = np.array(signed, dtype=float)
        return paired(table[:, 1], table[:, 0], _ALPHA)

    def _is_one(self, arms: Sequence[tuple[Tried, Tried]]) -> bool:
        """Whether all pairs are one: seeds change nothing about either configuration."""
        timed = self._search.goal.timed
        return len(arms) > 1 and all(are_alike(runs, timed) for runs in zip(*arms, strict=True))

    def _costs(self, arms: Sequence[tuple[Tried, Tried]]) -> Interval | None:
        """As a multiple of the defaults', where the metric is set against a cost."""
        import numpy as np

        if not self._search.goal.against:
            return None
        pairs = [(one.cost, other.cost) for one, other in arms if one.cost and other.cost]
        if len(pairs) < len(arms):
            return Interval(0.0, math.nan, math.inf)
        table = np.log(np.array(pairs, dtype=float))
        found = paired(table[:, 0], table[:, 1], _ALPHA)
        return Interval(*(float(np.exp(each)) for each in (found.low, found.estimate, found.high)))


def _step_of(arms: Sequence[tuple[Tried, Tried]]) -> float:
    """The smallest step of the metric that was seen: of an accuracy of a hundred samples 0.01."""
    runs = [run for pair in arms for run in pair]
    values = {run.metric for run in runs} | {metric for run in runs for _, metric in run.seen}
    known = sorted(each for each in values if each is not None and math.isfinite(each))
    return min((above - below for below, above in itertools.pairwise(known)), default=0.0)


def _tells(pair: tuple[Tried, Tried]) -> bool:
    """Whether anything can be established with it."""
    return all(run.state == "complete" for run in pair)


def _name(values: Mapping[str, Value], seed: int) -> str:
    """By which a run of the comparison is remembered."""
    return f"seed {seed}: {key_of(values)}"
