"""Searches of programs that are only numbers: a run's metric comes of its values and seed; it takes a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from overdrive.core.hyperparameters import OPTION, ValuePlace
from overdrive.core.metric import Metric
from overdrive.core.search_result import SearchResult, Tried
from overdrive.core.settings import Value
from overdrive.search.comparison import Comparison
from overdrive.search.domain import domain_of
from overdrive.search.engine import Engine
from overdrive.search.goal import Goal
from overdrive.search.parameters import Parameter
from overdrive.search.runs import UNITS, OnProgress
from overdrive.search.search import Search

Quality = Callable[[Mapping[str, Value], random.Random], float]  # of a configuration, with the run's chance

BEST = Goal(True)
PARAMETERS = tuple(
    Parameter(name, (ValuePlace(OPTION, f"--{name}", value),))
    for name, value in (("lr", 0.01), ("batch-size", 64), ("gamma", 0.5), ("width", 32))
)


class Simulated:
    """A program. The same values under the same seed come to the same metric."""

    def __init__(self, quality: Quality, chance: int, curve: bool = False) -> None:
        """`curve`: its metric is seen on the way, and comes to its end in a straight line."""
        self.quality, self.chance, self.curve = quality, chance, curve
        self.made: list[tuple[dict[str, Value], int]] = []

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        self.made.append((dict(values), seed))
        every = {**{each.name: each.default for each in PARAMETERS}, **values}
        metric = self.quality(every, random.Random(repr((self.chance, seed, sorted(every.items())))))
        for unit in range(1, UNITS) if watch and self.curve else ():
            if watch(unit, -metric * unit / UNITS):  # type: ignore[misc]
                return Tried(0, dict(values), "pruned", metric * unit / UNITS, unit / UNITS, unit)
        return Tried(0, dict(values), "complete", metric, 1.0, UNITS)


def searched(
    program: Simulated,
    journal: Path,
    budget: float = 40.0,
    seed: int = 0,
    goal: Goal = BEST,
    sampler: str = "tpe",
    parameters: Sequence[Parameter] = PARAMETERS,
) -> SearchResult:
    """A whole search of all parameters in `budget` runs. What was passed over is in its notes."""
    domains = {each.name: domain_of(each) for each in parameters}
    engine = Engine(journal, domains, seed, bool(goal.against), sampler)
    try:
        metric = Metric("Accuracy")
        order = Search(tuple(parameters), domains, metric, goal, budget, engine, program.run, lambda text: None)
        with engine.sharing.turn("beginning"):
            defaults = order.defaults()
        trials = order.trials(defaults)
        best = order.best(defaults, trials)
        comparison = Comparison(order, defaults, best).made() if best else None
        notes = tuple(filter(None, [order.passed_over(defaults, trials)]))
        return replace(order.result("train.py", defaults, trials, comparison, best), notes=notes)
    finally:
        engine.close()
