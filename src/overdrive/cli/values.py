"""The values that options take, checked where they are read: the error names the option."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overdrive.core.link import Link, LinkError
from overdrive.core.metric import Metric, MetricError
from overdrive.core.objective import Objective, ObjectiveError, bytes_in

if TYPE_CHECKING:
    from overdrive.core.tune_result import Price
    from overdrive.machine.pool.curve import Measured
    from overdrive.search.domain import Wish

_NUMBER = r"(\d+\.?\d*|\.\d+)"
_DURATION = re.compile(
    rf"(?:{_NUMBER}h(?:ours?|rs?)?)?(?:{_NUMBER}m(?:in(?:ute)?s?)?)?(?:{_NUMBER}(?:s(?:ec(?:ond)?s?)?)?)?"
)
_HOURS_AND = re.compile(rf"{_NUMBER}h(?:ours?|rs?)?{_NUMBER}")  # minutes for most who write it, and no seconds


def _meant(text: str) -> str:
    """What a duration may have been meant to be, to stand after it."""
    if clock := re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text):
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        whole = "".join(f"{value}{unit}" for value, unit in ((hours, "h"), (minutes, "m"), (seconds, "s")) if value)
        return f" (did you mean {whole}?)" if whole else ""
    if _HOURS_AND.fullmatch(text):
        return f" (did you mean {text}m?)"
    if days := re.fullmatch(rf"{_NUMBER}d(?:ays?)?", text):
        return f" (did you mean {24 * float(days[1]):g}h?)"
    if other := re.fullmatch(rf"{_NUMBER}([a-z]+)", text):
        unit = next((unit for unit in "hms" if other[2].startswith(unit)), "m")
        return f" (did you mean {other[1]}{unit}?)"
    return ""


class Whole(click.IntRange):
    """A whole number within its limits; the refusal says which."""

    name = "n"  # what stands for it in the help

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return int(super().convert(value, param, context))
        except click.UsageError:
            most = f" to {self.max}" if self.max is not None else " or more"
            self.fail(f"{str(value)!r} is not a whole number, {self.min}{most}", param, context)


class Duration(click.ParamType):  # type: ignore[type-arg]  # not subscriptable before click 8.5
    name = "duration"

    def __init__(self, auto: bool = False, long: bool = False) -> None:
        """
        Args:
            auto: the word is one, and stands for None: as long as it pays.
            long: years and days are durations, too, by themselves: 5y, 90d.
        """
        self._auto, self._long = auto, long

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float | None:
        if isinstance(value, float):
            return value
        if self._auto and value == "auto":
            return None
        text = re.sub(r"[\s,]+", "", str(value)).lower()
        if self._long and (days := re.fullmatch(rf"{_NUMBER}([dy])", text)) and float(days[1]):
            return float(days[1]) * 86_400 * (365.25 if days[2] == "y" else 1)
        parts = _DURATION.fullmatch(text)
        if not text or parts is None or _HOURS_AND.fullmatch(text):
            self.fail(f"{value!r} is not a duration{_meant(text)}; write for example 90s, 10m or 1h30m", param, context)
        hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        total = 3600 * hours + 60 * minutes + seconds
        if total <= 0:
            self.fail("a time must be longer than nothing", param, context)
        return total


_CURRENCY = r"([^\d\s.,/-]{0,4})"


class PriceName(click.ParamType):  # type: ignore[type-arg]
    name = "price"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Price:
        """`2.50/h`, `$2.50`, `0.04 EUR/min`: an hour where no time is named."""
        from overdrive.core.tune_result import Price  # 0.05 s, which `overdrive run` has no use for

        if isinstance(value, Price):
            return value
        parts = re.fullmatch(rf"{_CURRENCY}\s*{_NUMBER}\s*{_CURRENCY}(?:/(h|hour|min|d|day))?", str(value).strip())
        if parts is None or not float(parts[2]):
            self.fail(f"{value!r} is not a price; write for example 2.50/h or $0.90/h", param, context)
        hours = {"min": 1 / 60, "d": 24, "day": 24}.get(parts[4] or "h", 1)
        return Price(float(parts[2]) / hours, parts[1] or parts[3])


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


class SizeText(click.ParamType):  # type: ignore[type-arg]
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else bytes_in(str(value))
        except ObjectiveError as error:
            self.fail(str(error), param, context)


class PoolFile(click.ParamType):  # type: ignore[type-arg]
    """What `doctor --pool --json` has written."""

    name = "pool"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Measured:
        from overdrive.machine.pool.curve import Measured  # `overdrive run` has no use for it

        if isinstance(value, Measured):
            return value
        try:
            return Measured.kept(Path(value).read_text(encoding="utf-8"), str(value))
        except (OSError, UnicodeError) as error:
            self.fail(f"{value} cannot be read: {getattr(error, 'strerror', 'it is no text')}", param, context)
        except LinkError as error:
            self.fail(str(error), param, context)


class LinkText(click.ParamType):  # type: ignore[type-arg]
    """One of the catalogue, a rate and a latency, or the file of a pool that was measured."""

    name = "link"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Link | Measured:
        from overdrive.insight.requirements.links import links  # `overdrive run` has no use for these
        from overdrive.machine.pool.curve import Measured

        if isinstance(value, (Link, Measured)):
            return value
        if known := links().get(str(value).lower()):
            return known
        if str(value).endswith(".json"):
            return PoolFile().convert(value, param, context)
        try:
            return Link.parse(str(value))
        except LinkError as error:
            self.fail(f"{error}, or one of {', '.join(links())}", param, context)


class WishText(click.ParamType):  # type: ignore[type-arg]
    name = "parameter"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Wish:
        from overdrive.search.domain import DomainError, Wish, parse  # as above

        try:
            return value if isinstance(value, Wish) else parse(str(value))
        except DomainError as error:
            self.fail(str(error), param, context)


class Names(click.ParamType):  # type: ignore[type-arg]
    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        from overdrive.core.plan.removed import REMOVED
        from overdrive.core.plan.table import closest
        from overdrive.techniques.catalogue import catalogue

        names = frozenset(filter(None, (each.strip() for each in str(value).split(","))))
        if value and not names:
            self.fail(f"{value!r} names no technique; `overdrive techniques` lists them", param, context)
        for unknown in sorted(names - catalogue().keys()):
            if unknown in REMOVED:
                self.fail(f"{unknown!r} is no technique any more: {REMOVED[unknown]}", param, context)
            close = closest(unknown, list(catalogue()))
            self.fail(f"{unknown!r} is no technique{close}; `overdrive techniques` lists them", param, context)
        return names


class RanksToTry(click.ParamType):  # type: ignore[type-arg]
    """`auto`, which stands for 0, or a number of processes."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        if value == "auto":
            return 0
        if not str(value).isdecimal() or int(value) < 2:
            self.fail(f"{value!r} is neither auto nor a number of processes, 2 or more", param, context)
        return int(value)


stdin_option = click.option(
    "--stdin",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    metavar="FILE",
    help="The standard input of the script in trials; empty by default.",
)

metric_option = click.option(
    "--metric",
    type=MetricName(),
    help="What to compare instead of the training loss, in runs of the whole program: a word before a number in its "
    "output (Accuracy), a regular expression with one group, or evaluate() for what a function returned.",
)


class Margin(click.ParamType):  # type: ignore[type-arg]
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        number = float(click.FLOAT.convert(value, param, context))
        if not 0 < number < float("inf"):
            self.fail("the margin must be above 0", param, context)
        return number


margin_option = click.option(
    "--margin", type=Margin(), help="The difference of the metric that you would accept, in its own unit."
)
