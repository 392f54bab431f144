"""The search: the defaults first, then configurations until the time for the comparison has come (`comparison`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from overdrive.core.metric import Metric
from overdrive.core.search_result import SearchResult, SeedComparison, Tried, Varied
from overdrive.core.settings import Value, in_words
from overdrive.search import names
from overdrive.search.domain import Domain
from overdrive.search.engine import Engine
from overdrive.search.goal import Goal
from overdrive.search.parameters import Parameter
from overdrive.search.runs import UNITS, OnProgress

DEFAULTS = "defaults"
_SHARE_OF_COMPARISON = 0.4  # of the budget
# Of the time for configurations: some twelve runs are made in it, so that questions cost about one of them.
_SHARE_OF_QUESTIONS = 0.1
FEWEST_PAIRS, _MOST_PAIRS = 3, 10
_FEWEST_RUNS = 3  # of a search that is worth its name
SLOWER = 4.0  # times the default's seconds: a run that takes longer is given up
_LATER = 1.25  # times the soonest time to the target: by so much a time of one run may be off
_LOOK_AGAIN = 1.0  # seconds, for what another process is at
_REPEATS = 20  # proposals that were tried already: the values are used up

# Runs a configuration under a seed for so many seconds at most.
RunOne = Callable[[Mapping[str, Value], int, float, OnProgress | None], Tried]


class CannotSearch(Exception):
    """There is nothing to search; the message is one sentence for people."""


@dataclass(frozen=True)
class Search:
    """What is wanted, and who does it."""

    parameters: tuple[Parameter, ...]
    domains: Mapping[str, Domain]
    metric: Metric
    goal: Goal
    budget: float
    engine: Engine
    run: RunOne
    tell: Callable[[str], None]
    keep: Callable[[list[Tried]], None] = lambda runs: None  # told of all runs so far, after each
    judge: str = ""  # the metric of the comparison, where it is another one, ...
    judged: RunOne | None = None  # ... and who makes its runs

    def defaults(self, hint: Callable[[], str] = str) -> Tried:
        """The program as it is, to its end.

        Args:
            hint: what else could be the metric, where it never appears.

        Raises:
            CannotSearch: it fails, has no metric, or takes too long for the budget.
        """
        known, before = self.engine.recall(DEFAULTS), 0.0
        if known is None:
            before = self.engine.seconds_remembered()  # of looking what can be varied
            self.tell("the program as it is")
            known = self.run({}, 0, self.budget, None)
            if known.state == "failed" and known.seconds >= self.budget:
                raise CannotSearch(
                    f"One run takes longer than the budget of {_seconds(self.budget)}: write a longer --budget, or "
                    "have the program train for less."
                )
            if known.state == "failed":
                raise CannotSearch(f"The program with its defaults fails by itself: {known.why}.")
            if known.metric is None:
                within = f" within {_seconds(self.goal.within)}" if self.goal.within else ""
                raise CannotSearch(f"There is nothing to compare: {_missing(self.metric, known)}{within}.{hint()}")
            if self.goal.against and not known.cost:
                raise CannotSearch(f"{self.metric.name} cannot be set against {self.goal.against}: no step was seen.")
            self.engine.remember(DEFAULTS, known)
        needed = before + known.seconds * (1 + _FEWEST_RUNS + 2 * FEWEST_PAIRS)
        if needed > self.budget:
            raise CannotSearch(
                f"A run takes {_seconds(known.seconds)}: {_FEWEST_RUNS} configurations and a comparison of "
                f"{FEWEST_PAIRS} pairs need about {_seconds(needed)}. Write --budget {math.ceil(needed / 60)}m, or "
                "have the program train for less."
            )
        return known

    def purse(self, defaults: Tried) -> float:
        """Seconds that questions to the program may take which are no configurations, before any is tried."""
        left = self._most(defaults) - self.engine.seconds_remembered()
        return min(_SHARE_OF_QUESTIONS * left, left - _FEWEST_RUNS * _length(defaults))

    def pairs(self, defaults: Tried) -> int:
        """How many pairs of runs the comparison is given: fixed before the search."""
        each = 2 * _length(defaults)
        return max(FEWEST_PAIRS, min(_MOST_PAIRS, int(_SHARE_OF_COMPARISON * self.budget / each)))

    def trials(self, defaults: Tried) -> list[Tried]:
        """Configurations until the time for the comparison has come; those of before and of other processes included.

        Returns when no process is at one any more, so that all see the same.
        """
        self.engine.expect(int(self._most(defaults) / _length(defaults)), self._first_look(defaults))
        own = {each.name: each.default for each in self.parameters}
        if not self.engine.runs() and all(self.domains[name].holds(value) for name, value in own.items()):
            self.engine.enqueue(own)
        others, waiting = 0, False

        def room(at_it: int) -> bool:
            nonlocal others
            others = at_it
            left = self._most(defaults) - self.engine.seconds_remembered() - at_it * _length(defaults)
            return self._repeats() < _REPEATS and _length(defaults) <= left

        while True:
            if asked := self.engine.ask(room):
                self._one(*asked, defaults, key_of(own))
                self.keep(self.made())
            elif not others:
                return self.made()
            else:
                if not waiting:
                    self.tell("waiting for runs that other processes are at")
                waiting = True
                time.sleep(_LOOK_AGAIN)

    def _first_look(self, defaults: Tried) -> int:
        """The unit of a run by which it may be ended early, for the first time: 0 where that is the engine's to say.

        Runs are compared at equal time where that is what counts. One that has printed nothing by then would be
        compared by what it prints later; so it comes after the first number of the defaults.
        """
        if not self.goal.timed or not defaults.seen or not defaults.seconds:
            return 0
        return math.ceil(_LATER * defaults.seen[0][0] / defaults.seconds * UNITS)

    def _most(self, defaults: Tried) -> float:
        """Seconds after which the time of the comparison has come.

        As long as nothing was found that would be compared, half of that time is for looking on; and so is what pairs
        need less where the chosen one comes to the target sooner than the defaults. One that takes longer than these
        is kept the time of the fewest pairs, if that is not most of the budget: it may be the best by chance.
        """
        pairs, each = self.pairs(defaults), _length(defaults)
        best = self.best(defaults, self.made())
        if best is None:
            return self.budget - max(FEWEST_PAIRS, pairs // 2) * 2 * each
        sooner = best.reached if self.goal.target is not None else None
        least = FEWEST_PAIRS * (each + _length(best))
        kept = pairs * (each + min(each, _LATER * (sooner or each)))
        return self.budget - (max(kept, least) if least <= self.budget / 2 else kept)

    def _repeats(self) -> int:
        """How many of the last proposals had been tried."""
        return sum(1 for _ in takewhile(lambda run: not run.seconds, reversed(self.engine.runs())))

    def made(self) -> list[Tried]:
        """The runs of the search so far."""
        return [run for run in self.engine.runs() if run.seconds]

    def _one(self, number: int, values: Mapping[str, Value], defaults: Tried, own: str) -> None:
        """Make this run, where it is none that was made before. `own`: the key of the defaults."""
        key = key_of(values)
        while key in {key_of(each) for other, each in self.engine.under_way().items() if other < number}:
            time.sleep(_LOOK_AGAIN)
        known = {own: defaults, **{key_of(run.values): run for run in self.engine.runs()}}.get(key)
        if known is None:
            self.tell(f"{number}: {in_words(values)}")
            watch = partial(self._falls_behind, number)
            left = _LATER * max(self._most(defaults) - self.engine.seconds_remembered(), _length(defaults))
            most = min(self._soon_enough(defaults), left)
            run = self.run(values, 0, most, None if self.goal.against else watch)
            if run.state == "failed" and run.seconds >= left:
                run = replace(run, state="pruned", why="the time of the search was over")
        again = replace(known or run, number=number, values=values, seconds=0.0 if known else run.seconds)
        self.engine.tell(again, self.goal.score(again, _patience(defaults)))

    def _falls_behind(self, number: int, unit: int, score: float) -> bool:
        """Whether a run is to end here: never where rates may fall, as what is gained by that comes last."""
        falls = any(each.meaning == names.ANNEAL for each in self.parameters)
        return not falls and unit < UNITS and self.engine.ends_early(number, unit, score)

    def _soon_enough(self, defaults: Tried) -> float:
        """Seconds after which a run is given up: none that comes so late would be chosen."""
        reached = [run.reached for run in (defaults, *self.engine.runs()) if run.reached]
        return min([_patience(defaults) + 5.0, *(_LATER * each for each in reached)])

    def best(self, defaults: Tried, trials: Sequence[Tried]) -> Tried | None:
        """The configuration with the best score, where that is better than the defaults'.

        One whose comparison the budget does not hold is passed over. Where the metric is set against a cost, it is the
        one that costs least of those that are as good as the defaults.
        """
        patience = _patience(defaults)
        compared = [run for run in trials if self._holds_pairs_of(run, defaults, trials)]
        scores = [(score, run) for run in compared if (score := self.goal.score(run, patience)) is not None]
        its = self.goal.score(defaults, patience)
        if self.goal.against:
            return self._cheapest(defaults, [(score, run) for score, run in scores if its is not None and score <= its])
        score, run = min(scores, key=lambda each: each[0], default=(math.inf, None))
        return run if run is not None and its is not None and score < its else None

    def _cheapest(self, defaults: Tried, as_good: Sequence[tuple[float, Tried]]) -> Tried | None:
        least = min(as_good, key=lambda each: (each[1].cost or math.inf, each[0]), default=(0.0, defaults))[1]
        return least if (least.cost or math.inf) < (defaults.cost or 0.0) else None

    def passed_over(self, defaults: Tried, trials: Sequence[Tried]) -> str:
        """In words, where the best one takes too long to be compared within the budget."""
        patience = _patience(defaults)
        scores = {run.number: score for run in trials if (score := self.goal.score(run, patience)) is not None}
        best = self.best(defaults, trials)
        if self.goal.against:
            return ""
        least = scores[best.number] if best else self.goal.score(defaults, patience)
        over = [run for run in trials if run.number in scores and least is not None and scores[run.number] < least]
        if not over:
            return ""
        first = min(over, key=lambda run: scores[run.number])
        needed = self._before_comparing(defaults, trials) + FEWEST_PAIRS * (_length(defaults) + first.seconds)
        return (
            f"{in_words(first.values)} looked better, but a run of it takes {_seconds(first.seconds)}: to compare it "
            f"takes --budget {math.ceil(needed / 60)}m."
        )

    def _holds_pairs_of(self, run: Tried, defaults: Tried, trials: Sequence[Tried]) -> bool:
        """Whether there is time for the fewest pairs; one that is no slower than the defaults always has its time."""
        each, its = _length(run), _length(defaults)
        if each <= _LATER * its:
            return True
        return FEWEST_PAIRS * (its + each) <= self.budget - self._before_comparing(defaults, trials)

    def _before_comparing(self, defaults: Tried, trials: Sequence[Tried]) -> float:
        """Seconds of the defaults and the search: what all processes see alike when it is over."""
        return defaults.seconds + sum(run.seconds for run in trials)

    def result(
        self,
        program: str,
        defaults: Tried,
        trials: Sequence[Tried],
        comparison: SeedComparison | None,
        chosen: Tried | None,
    ) -> SearchResult:
        """What it came to. The command line and edits are for who knows the program to add."""
        return SearchResult(
            program=program,
            metric=self.metric.name,
            maximize=self.goal.maximize,
            target=self.goal.target,
            budget=self.budget,
            spent=self.engine.seconds_remembered(),
            parameters=tuple(
                Varied(each.name, each.default, each.place, each.effect, str(self.domains[each.name]))
                for each in self.parameters
            ),
            defaults=defaults,
            trials=tuple(trials),
            verdict=verdict(comparison),
            chosen=dict(chosen.values) if chosen else {},
            comparison=comparison,
            importances=self.engine.importances(),
            judge=self.judge,
            within=self.goal.within,
            against=self.goal.against,
        )


def _missing(metric: Metric, run: Tried) -> str:
    if metric.is_loss and not run.steps:
        return "no optimizer was seen to make a step, so that --metric must name a number that is printed"
    return metric.missing()


def _length(run: Tried) -> float:
    """Seconds that a run takes: with a target no longer than until that is reached."""
    return run.reached if run.reached is not None else run.seconds


def verdict(comparison: SeedComparison | None) -> str:
    """Of a comparison, or where nothing was found that would be worth one."""
    if comparison is None:
        return "no better"
    gain, cost = comparison.gain, comparison.cost
    if not math.isfinite(gain.low):
        return "not established"
    if cost and not cost.high < 1:
        return "no better"
    if gain.low > 0:
        return "better"
    return "cheaper" if cost and gain.high >= 0 else "no better"


def _patience(defaults: Tried) -> float:
    """Seconds after which a run that has not arrived counts as one that never does."""
    return SLOWER * defaults.seconds


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


def key_of(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in sorted(values.items()))
