"""The values that options take, checked where they are read: the error names the option."""

from __future__ import annotations

import re
from typing import Any

import click

from overdrive.core.metric import Metric, MetricError
from overdrive.core.objective import Objective, ObjectiveError
from overdrive.search.domain import DomainError, Wish
from overdrive.search.domain import parse as parse_wish


class Duration(click.ParamType):  # type: ignore[type-arg]  # not subscriptable before click 8.5
    name = "duration"

    def __init__(self, auto: bool = False) -> None:
        """`auto`: the word is one, and stands for None: as long as it pays."""
        self._auto = auto

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float | None:
        if isinstance(value, float):
            return value
        if self._auto and value == "auto":
            return None
        number = r"(\d+\.?\d*|\.\d+)"
        parts = re.fullmatch(rf"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s?)?", str(value).strip())
        if not str(value).strip() or parts is None:
            self.fail(f"{value!r} is not a duration; write for example 90s, 10m or 1h30m", param, context)
        hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        total = 3600 * hours + 60 * minutes + seconds
        if total <= 0:
            self.fail("the budget must be longer than nothing", param, context)
        return total


class MetricName(click.ParamType):  # type: ignore[type-arg]
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Metric:
        try:
            return value if isinstance(value, Metric) else Metric(str(value))
        except MetricError as error:
            self.fail(str(error), param, context)


class ObjectiveName(click.ParamType):  # type: ignore[type-arg]
    name = "objective"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Objective:
        try:
            return value if isinstance(value, Objective) else Objective.parse(str(value))
        except ObjectiveError as error:
            self.fail(str(error), param, context)


class WishText(click.ParamType):  # type: ignore[type-arg]
    name = "parameter"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Wish:
        try:
            return value if isinstance(value, Wish) else parse_wish(str(value))
        except DomainError as error:
            self.fail(str(error), param, context)


class Names(click.ParamType):  # type: ignore[type-arg]
    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        from overdrive.core.plan.removed import REMOVED
        from overdrive.techniques.catalogue import catalogue

        names = frozenset(filter(None, (each.strip() for each in str(value).split(","))))
        for unknown in sorted(names - catalogue().keys()):
            if unknown in REMOVED:
                self.fail(f"{unknown!r} is no technique any more: {REMOVED[unknown]}", param, context)
            self.fail(f"{unknown!r} is no technique; `overdrive techniques` lists them", param, context)
        return names


metric_option = click.option(
    "--metric",
    type=MetricName(),
    help="What to compare instead of the training loss, in runs of the whole program: a word before a number in its "
    "output (Accuracy), a regular expression with one group, or evaluate() for what a function returned.",
)
