"""What short trials tell before the first configuration is tried: a range test, and a curve over batch sizes.

They are asked only where they are cheap beside the configurations that are tried instead of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.search import names
from overdrive.search.batch_curve import batch_curve, cost_of_curve, tells_noise
from overdrive.search.domain import Domain
from overdrive.search.parameters import Parameter, Values
from overdrive.search.range_test import FEWEST_STEPS, cost_of_range_test, range_test
from overdrive.search.runs import Runs
from overdrive.search.search import Search


@dataclass(frozen=True)
class _Question:
    """
    Attributes:
        cost: seconds that it takes, foretold.
        ask: returns what was found, in words.
    """

    name: str
    cost: float
    ask: Callable[[], str]


def begin_with_knowledge(order: Search, runs: Runs, defaults: Tried) -> tuple[str, ...]:
    """Have the configurations that they speak for tried first; in words, what they tell."""
    said = []
    for question in _questions(order, runs, defaults):
        known = order.engine.recall(question.name)
        new = known is None and not order.engine.runs()
        if new and question.cost <= order.purse(defaults):
            began = time.monotonic()
            why = question.ask()
            known = Tried(0, {}, "complete", None, time.monotonic() - began, why=why)
            order.engine.remember(question.name, known)
        said += [known.why] if known and known.why else []
    return tuple(said)


def _questions(order: Search, runs: Runs, defaults: Tried) -> list[_Question]:
    """Those that suit the program, the cheaper one first."""
    found = []
    rate, size = (_meaning(order, name) for name in (names.LR, names.BATCH_SIZE))
    if defaults.steps < FEWEST_STEPS:
        return []
    if rate and float(rate.default) > 0:  # else a schedule alone decides it
        cost = cost_of_range_test(defaults)
        found.append(_Question("range test", cost, lambda: _ask_range_test(order, runs, defaults, rate)))
    if size and tells_noise(runs.found.facts):
        cost = cost_of_curve(defaults, sizes_of(order.domains[size.name]), int(size.default))
        found.append(_Question("batch curve", cost, lambda: _ask_batch_curve(order, runs, size, rate)))
    return found


def _meaning(order: Search, name: str) -> Parameter | None:
    return next((each for each in order.parameters if each.meaning == name), None)


def sizes_of(domain: Domain) -> list[int]:
    return [int(each) for each in domain.choices] or [int(domain.low), int(domain.high)]


def _ask_range_test(order: Search, runs: Runs, defaults: Tried, rate: Parameter) -> str:
    order.tell("a run with a growing learning rate")
    found = range_test(runs.pool, runs.program, runs.techniques, defaults.steps, runs.launcher())
    if found is None:
        return ""
    default = float(rate.default)
    for factor in found.suggested:
        _enqueue(order, {rate.name: _three_digits(default * factor)})
    broken = f", and the training breaks from {default * found.broken:.2g} on" if found.breaks else ""
    return f"With a growing learning rate the training loss is lowest at {default * found.lowest:.2g}{broken}."


def _ask_batch_curve(order: Search, runs: Runs, size: Parameter, rate: Parameter | None) -> str:
    sizes = sizes_of(order.domains[size.name])
    curve = batch_curve(runs.pool, runs.program, size, sizes, runs.techniques, order.tell)
    if curve is None:
        return ""
    best = curve.best
    values: dict[str, Value] = {size.name: best.batch}
    if rate:
        values[rate.name] = _three_digits(float(rate.default) * best.rate)
    if best.batch != curve.default:
        _enqueue(order, values)
    return curve.sentence()


def _enqueue(order: Search, values: Values) -> None:
    """With the author's own values of all else, by which they were found."""
    if all(order.domains[name].holds(value) for name, value in values.items()):
        own = {each.name: each.default for each in order.parameters if order.domains[each.name].holds(each.default)}
        order.engine.enqueue({**own, **values})


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
