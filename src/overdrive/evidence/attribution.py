"""Attributes a plan's gain to its techniques: from step times of its subsets, measured in turn, to speed-up factors.

A technique's gain depends on which others are there: alone (add-one-in), as the last of the plan
(leave-one-out), or on average over the orders in which the plan can be put together, which is its Shapley
value (Shapley 1953, "A value for n-person games"). All is done on ln(seconds), so that the Shapley values add
up to the total and their factors multiply to it.

An interval speaks of the processes that were measured, one for each configuration. A process may be a few
per cent faster or slower for all its life; that is in the estimate, and only fresh processes would show it.
tests/evidence/test_attribution.py holds the simulations: the 95 % intervals cover the truth in 96 to 98 % of
cases with 5 to 40 rounds, heavy tails included.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from overdrive.core.interval import Interval
from overdrive.evidence import student
from overdrive.evidence.speed import Array, factor, resample, trimmed_mean

Names = tuple[str, ...]  # a plan's techniques, in the order of adoption
Configuration = frozenset[str]  # the techniques of it that are switched on
Weights = Mapping[Configuration, float]  # an effect: so much of the log-speedup of each configuration

_CONFIDENCE = 0.95
_NOT_NOTICED = 0.01  # a change that nobody would notice, as a share; the same as for a duel's verdict


@dataclass(frozen=True)
class Share:
    """What one technique gained, as factors of speed: 1.25 is a quarter faster."""

    name: str
    shapley: Interval  # the values of all techniques multiply to the total
    alone: Interval  # from the untouched program to the program with only this one
    last: Interval  # from the plan without it to the plan


@dataclass(frozen=True)
class Attribution:
    """A plan's gain, shared out among its techniques in the order of adoption."""

    method: str
    rounds: int | None  # of all combinations; None where it was not by rounds
    total: Interval
    shares: tuple[Share, ...]
    # total / product of `alone`; below 1 the techniques gain the same thing twice. None: none was found to.
    interaction: Interval | None


def configurations(names: Names, most: int = 16, seed: int = 0) -> list[Configuration]:
    """What has to be measured: all subsets where they are `most` or fewer (4 techniques: 16).

    Otherwise none, all, all but one and one alone (always, also where these are more than `most`), then the
    beginnings of random orders as far as `most` allows. Each order comes with its reverse: the mean of the two
    is the very Shapley value wherever techniques interact only in pairs.
    """
    if 2 ** len(names) <= most:
        return [frozenset(chosen) for size in range(len(names) + 1) for chosen in combinations(names, size)]
    whole = frozenset(names)
    ends = [frozenset(), whole, *(whole - {name} for name in names), *(frozenset({name}) for name in names)]
    found = dict.fromkeys(ends)
    rng = random.Random(seed)
    while True:
        order = rng.sample(names, len(names))
        starts = [frozenset(order[:size]) for size in range(1, len(names))]
        longer = found | dict.fromkeys(starts) | dict.fromkeys(whole - start for start in starts)
        if len(longer) > most:
            return list(found)
        found = longer


def attribute(names: Names, seconds: Mapping[Configuration, Sequence[float]]) -> Attribution:
    """Share out the gain of a plan.

    `seconds` holds, for each of `configurations(names)`, the seconds a training step took in every round. All
    were measured within each round, so that what slows a whole round cancels out.

    Raises:
        ValueError: a configuration is missing, has other rounds than the rest, or a time that is none.
    """
    none, whole = Configuration(), frozenset(names)
    alone = {name: _step(none, name) for name in names}
    last = {name: _step(whole - {name}, name) for name in names}
    total = _sum([({whole: 1.0}, 1.0), ({none: 1.0}, -1.0)])
    gains = _Gains(seconds, needed=[none, whole, *(each for way in (*alone.values(), *last.values()) for each in way)])
    shapley, orders = _over_orders(names, set(seconds))
    if not orders:
        shapley = _over_ends(alone, last, total)
    return Attribution(
        _method(orders, math.factorial(len(names))),
        gains.rounds,
        gains.factor(total),
        tuple(Share(name, *(gains.factor(way[name]) for way in (shapley, alone, last))) for name in names),
        gains.factor(_sum([(total, 1.0), *((way, -1.0) for way in alone.values())])),
    )


def without_effect(attribution: Attribution) -> list[str]:
    """The techniques that the plan may do without: as the last one they gain next to nothing. Weakest first.

    An interval that reaches 1 is not enough: on a noisy machine that of a technique that won its duel may.

    Two that do the same are both named; after the first was dropped, the other has to be judged anew.
    """
    idle = [
        share
        for share in attribution.shares
        if share.last.low <= 1 + _NOT_NOTICED and share.last.estimate <= 1 + 2 * _NOT_NOTICED
    ]
    return [share.name for share in sorted(idle, key=lambda share: share.last.estimate)]


class _Gains:
    """The log-speedup of every configuration, and draws of it from which intervals are made."""

    def __init__(self, seconds: Mapping[Configuration, Sequence[float]], needed: Iterable[Configuration]) -> None:
        _require(seconds, needed)
        self._place = {configuration: index for index, configuration in enumerate(seconds)}
        logs = -np.log(np.array(list(seconds.values()), dtype=float))  # (configurations, rounds)
        # Against the round's median and not against the untouched program: a stalled block of one
        # configuration then moves its own round only, and trimming takes it out.
        logs -= np.median(logs, axis=0)
        self.rounds = logs.shape[1]
        self._centre: Array = trimmed_mean(logs)  # (configurations,)
        self._drawn: Array | None = None
        if self.rounds > 1:
            draws = resample(self.rounds, np.random.default_rng(0))
            self._drawn = trimmed_mean(logs[:, draws.chosen])  # (configurations, resamples)
            self._scale = student.quantile(_CONFIDENCE, draws.freedom) * math.sqrt(draws.stretch)

    def factor(self, weights: Weights) -> Interval:
        row = np.zeros(len(self._place))
        for configuration, weight in weights.items():
            row[self._place[configuration]] = weight
        half = None if self._drawn is None else self._scale * float(np.std(row @ self._drawn))
        return factor(float(row @ self._centre), half)


def _over_orders(names: Names, measured: set[Configuration]) -> tuple[dict[str, Weights], int]:
    """Each technique's mean gain over the orders all of whose beginnings were measured, and how many these are."""
    whole = frozenset(names)
    before, after = _ways(measured, frozenset(), 1), _ways(measured, whole, -1)
    orders = before[whole]
    steps: dict[str, list[tuple[Weights, float]]] = {name: [] for name in names}
    for configuration in measured:
        for name in whole - configuration:
            passing = before[configuration] * after[configuration | {name}]
            if passing:
                steps[name].append((_step(configuration, name), passing / orders))
    return {name: _sum(parts) for name, parts in steps.items()}, orders


def _over_ends(alone: Mapping[str, Weights], last: Mapping[str, Weights], total: Weights) -> dict[str, Weights]:
    """Each technique's mean gain as the first and as the last one, with the rest of the total in equal parts.

    For plans with no measured order: from 6 techniques on, with 16 configurations. The rest is nothing, and
    these are the very Shapley values, wherever techniques interact only in pairs.
    """
    halves = {name: _sum([(alone[name], 0.5), (last[name], 0.5)]) for name in alone}
    rest = _sum([(total, 1.0), *((half, -1.0) for half in halves.values())])
    return {name: _sum([(half, 1.0), (rest, 1 / len(halves))]) for name, half in halves.items()}


def _method(orders: int, possible: int) -> str:
    if orders == possible:
        return "full factorial"
    if orders:
        return f"leave-one-out, add-one-in and sampled Shapley ({orders} of {possible} orders)"
    return "leave-one-out and add-one-in, with the mean of both as the Shapley value"


def _ways(measured: set[Configuration], start: Configuration, direction: int) -> Counter[Configuration]:
    """Count the orders that reach each configuration from `start` by adding (1) or removing (-1) one at a time."""
    ways = Counter({start: 1})
    for one in sorted(measured, key=lambda each: direction * len(each)):
        for other in measured:
            if len(other) == len(one) + direction and (one < other if direction > 0 else other < one):
                ways[other] += ways[one]
    return ways


def _step(configuration: Configuration, name: str) -> Weights:
    return {configuration | {name}: 1.0, configuration: -1.0}


def _sum(parts: Iterable[tuple[Weights, float]]) -> Weights:
    total: dict[Configuration, float] = {}
    for weights, times in parts:
        for configuration, weight in weights.items():
            total[configuration] = total.get(configuration, 0.0) + times * weight
    return total


def _require(seconds: Mapping[Configuration, Sequence[float]], needed: Iterable[Configuration]) -> None:
    missing = [configuration for configuration in needed if configuration not in seconds]
    if missing:
        raise ValueError(f"no times were given of {_described(missing[0])}")
    rounds = {len(times) for times in seconds.values()}
    if len(rounds) != 1 or 0 in rounds:
        raise ValueError(f"all configurations need the same rounds, one at the least; these have {sorted(rounds)}")
    for configuration, times in seconds.items():
        if not all(0 < time < math.inf for time in times):
            raise ValueError(f"a step takes more than 0 seconds; {_described(configuration)} was given {list(times)}")


def _described(configuration: Configuration) -> str:
    return " + ".join(sorted(configuration)) or "the untouched program"
