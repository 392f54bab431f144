"""The values that options take, checked where they are read: the error names the option."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overdrive.core.link import Link, LinkError
from overdrive.core.metric import Metric

if TYPE_CHECKING:
    from overdrive.core.tune_result import Price
    from overdrive.machine.pool.curve import Measured

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


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """What `parse` makes of a text; what it refuses by a ValueError is refused in its words."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, context)


_CURRENCY = r"([^\d\s.,/-]{0,4})"


def _price(text: str) -> Price:
    """`2.50/h`, `$2.50`, `0.04 EUR/min`: an hour where no time is named."""
    from overdrive.core.tune_result import Price  # 0.05 s, which `overdrive run` has no use for

    parts = re.fullmatch(rf"{_CURRENCY}\s*{_NUMBER}\s*{_CURRENCY}(?:/(h|hour|min|d|day))?", text.strip())
    if parts is None or not float(parts[2]):
        raise ValueError(f"{text!r} is not a price; write for example 2.50/h or $0.90/h")
    hours = {"min": 1 / 60, "d": 24, "day": 24}.get(parts[4] or "h", 1)
    return Price(float(parts[2]) / hours, parts[1] or parts[3])


def _pool_file(path: str) -> Measured:
    """What `doctor --pool --json` has written."""
    from overdrive.machine.pool.curve import Measured  # `overdrive run` has no use for it

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from None
    return Measured.kept(text, path)


def _link(text: str) -> Link | Measured:
    """One of the catalogue, a rate and a latency, or the file of a pool that was measured."""
    from overdrive.insight.requirements.links import links  # `overdrive run` has no use for these

    if known := links().get(text.lower()):
        return known
    if text.endswith(".json"):
        return _pool_file(text)
    try:
        return Link.parse(text)
    except LinkError as error:
        raise LinkError(f"{error}, or one of {', '.join(links())}") from None


def _names(text: str) -> frozenset[str]:
    from overdrive.core.plan.removed import REMOVED
    from overdrive.core.plan.table import closest
    from overdrive.techniques.catalogue import catalogue

    names = frozenset(filter(None, (each.strip() for each in text.split(","))))
    if text and not names:
        raise ValueError(f"{text!r} names no technique; `overdrive techniques` lists them")
    for unknown in sorted(names - catalogue().keys()):
        if unknown in REMOVED:
            raise ValueError(f"{unknown!r} is no technique any more: {REMOVED[unknown]}")
        close = closest(unknown, list(catalogue()))
        raise ValueError(f"{unknown!r} is no technique{close}; `overdrive techniques` lists them")
    return names


def _ranks_to_try(text: str) -> int:
    """`auto`, which stands for 0, or a number of processes."""
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 2:
        raise ValueError(f"{text!r} is neither auto nor a number of processes, 2 or more")
    return int(text)


def _margin(text: Any) -> float:
    number = float(click.FLOAT.convert(text, None, None))
    if not 0 < number < float("inf"):
        raise ValueError("the margin must be above 0")
    return number


LINK, METRIC, NAMES = Parsed("link", _link), Parsed("name", Metric), Parsed("names", _names)
POOL, PRICE, RANKS_TO_TRY = Parsed("pool", _pool_file), Parsed("price", _price), Parsed("ranks", _ranks_to_try)

stdin_option = click.option(
    "--stdin",
    type=click.Path(exists=True, dir_okay=False, readable=True),
    metavar="FILE",
    help="The standard input of the script in trials; empty by default.",
)

metric_option = click.option(
    "--metric",
    type=METRIC,
    help="What to compare instead of the training loss, in runs of the whole program: a word before a number in its "
    "output (Accuracy), a regular expression with one group, or evaluate() for what a function returned.",
)

margin_option = click.option(
    "--margin",
    type=Parsed("number", _margin),
    help="The difference of the metric that you would accept, in its own unit.",
)
