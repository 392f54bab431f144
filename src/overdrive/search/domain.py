"""The values that a parameter may take in a search: a sensible range, or what the user asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from overdrive.core.hyperparameters import DEPTH, MODEL
from overdrive.core.settings import Value
from overdrive.search import names
from overdrive.search.parameters import Parameter, written

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})((?::\w+)*)")
# Ranges by what a parameter is: outside, training fails or the parameter does nothing, in common practice.
_RATES = {names.MOMENTUM: (0.5, 0.99), names.BETA1: (0.8, 0.99), names.BETA2: (0.9, 0.9999), "dropout": (0.0, 0.6)}
_BOUNDED = {names.MOMENTUM, names.BETA1, names.BETA2, names.DROPOUT_RATE}
_FRACTIONS = {names.LR, names.WEIGHT_DECAY, *_BOUNDED}  # though a default may be written as 0 or 1
_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
_LR_REACH = 30.0  # times and a part of the default
_CLOSE_TO_ONE = 0.9


class DomainError(ValueError):
    """The values make no sense; the message is one sentence for people."""


@dataclass(frozen=True)
class Domain:
    """A range with both ends, or choices."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[Value, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(_shown(each) for each in self.choices)
        ends = f"{written(_plain(self.low, self.integer))}..{written(_plain(self.high, self.integer))}"
        return ends + (":log" if self.log else "")

    def holds(self, value: Value) -> bool:
        if self.choices:
            return value in self.choices
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True)
class Wish:
    """What the user typed after --vary, before the program is known."""

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    values: tuple[str, ...] = ()


def parse(text: str) -> Wish:
    """`lr`, `lr=1e-4..1e-1:log` or `batch-size=32,64,128`.

    Raises:
        DomainError: it is none of these, or a range that makes no sense.
    """
    name, given, rest = text.partition("=")
    if not name.strip():
        raise DomainError(f"{text!r} names no parameter; write for example lr=1e-4..1e-1:log")
    if not given:
        return Wish(name.strip())
    rest = rest.strip()
    if match := _RANGE.fullmatch(rest):
        low, high = float(match[1]), float(match[2])
        kinds = set(filter(None, match[3].split(":")))
        if unknown := kinds - {"log", "int"}:
            raise DomainError(f"{text!r}: :{unknown.pop()} is unknown; a range may end with :log or :int")
        if not low < high:
            raise DomainError(f"{text!r}: the range must begin below its end")
        if "log" in kinds and low <= 0:
            raise DomainError(f"{text!r}: a range with :log must begin above 0")
        return Wish(name.strip(), low, high, "log" in kinds, "int" in kinds)
    if ".." in rest:
        raise DomainError(f"{text!r} is not a range; write for example {name.strip()}=1e-4..1e-1:log")
    values = tuple(dict.fromkeys(each.strip() for each in rest.split(",") if each.strip()))
    if len(values) < 2:
        raise DomainError(f"{text!r} leaves nothing to choose: name two values or more, or a range LOW..HIGH")
    return Wish(name.strip(), values=values)


def domain_of(parameter: Parameter, wish: Wish | None = None) -> Domain:
    """
    Raises:
        DomainError: the wish does not suit the parameter, or it has no range of its own and none was asked for.
    """
    if wish is None or not (wish.values or wish.low < wish.high):
        found = sensible(parameter)
        if found is None:
            raise DomainError(f"{parameter.name} has no range of its own: write {parameter.name}=LOW..HIGH")
        return found
    default, name = parameter.default, parameter.name
    integer = _is_whole(parameter)
    if wish.values:
        domain = Domain(choices=tuple(_value(parameter, text) for text in wish.values))
    elif isinstance(default, (bool, str)):
        raise DomainError(f"{name} is {default!r} in the program, which is no number: name its values instead")
    else:
        if (integer or wish.integer) and any(end != int(end) for end in (wish.low, wish.high)):
            raise DomainError(f"{name} is a whole number in the program, and {wish.low:g}..{wish.high:g} is not")
        domain = Domain(wish.low, wish.high, wish.log, integer or wish.integer)
    ends = domain.choices or (domain.low, domain.high)
    numbers = [float(each) for each in ends if not isinstance(each, str)]
    if parameter.meaning == names.BATCH_SIZE and any(each < 1 for each in numbers):
        raise DomainError(f"{name} must be 1 or more")
    if parameter.meaning in _BOUNDED and any(not 0 <= each < 1 for each in numbers):
        raise DomainError(f"{name} must lie between 0 and 1, without 1")
    if parameter.meaning == names.ANNEAL and any(not 0 <= each <= 1 for each in numbers):
        raise DomainError(f"{name} is a share of the run, between 0 and 1")
    if parameter.meaning in (names.LR, names.WEIGHT_DECAY) and any(each < 0 for each in numbers):
        raise DomainError(f"{name} must not be below 0")
    return domain


def sensible(parameter: Parameter) -> Domain | None:
    """The range that people would try around the default; None where nothing is known."""
    default, meaning = parameter.default, parameter.meaning
    if isinstance(default, bool):
        return Domain(choices=(False, True))
    part = parameter.of_model
    if choices := parameter.places[0].choices or (part.choices if part else ()):
        return Domain(choices=tuple(_value(parameter, each) for each in choices)) if len(choices) > 1 else None
    if isinstance(default, str):
        return None
    if meaning == names.BATCH_SIZE and default >= 1:
        own = int(default)
        return Domain(choices=tuple(sorted({max(1, own // part) for part in (4, 2)} | {own, 2 * own, 4 * own})))
    if meaning == names.HIDDEN and isinstance(default, int) and default > 1:
        sizes = {_even(default // 4), _even(default // 2), default, 2 * default}
        return Domain(choices=tuple(sorted(sizes - {0})))
    if parameter.places[0].kind == DEPTH and isinstance(default, int):
        return Domain(1, default, integer=True)  # whether the program would call more of them is not known
    if meaning in _RATES:
        low, high = _RATES[meaning]
        return Domain(min(low, default), max(high, default)) if 0 <= default < 1 else None
    if meaning == names.LR:
        return Domain(_round(default / _LR_REACH), _round(default * _LR_REACH), True) if default > 0 else None
    if meaning == names.ANNEAL:
        return Domain(choices=(0.0, 0.5, 0.75, 1.0))
    if meaning == names.WEIGHT_DECAY:
        return Domain(1e-6, max(1e-1, default), True)
    if "seed" in parameter.name.lower():  # which decides about luck alone
        return None
    if isinstance(default, int):
        return Domain(max(1, default // 2), 2 * default, integer=True) if default > 1 else None
    if default <= 0:
        return None
    if _CLOSE_TO_ONE <= default < 1:  # a discount, a decay: what it leaves of 1 is what counts
        return Domain(1 - _round(5 * (1 - default)), 1 - _round((1 - default) / 5))
    most = 10 * default if default > 1 else min(1.0, 10 * default)  # a share stays one
    return Domain(_round(default / 10), _round(most), True)


def _value(parameter: Parameter, text: str) -> Value:
    default, first = parameter.default, parameter.places[0]
    if first.choices and first.kind not in MODEL and text not in first.choices:
        raise DomainError(f"{parameter.name} cannot be {text!r}: the program allows {', '.join(first.choices)}")
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in (*_ON, *_OFF):
            raise DomainError(f"{parameter.name} is on or off in the program, and not {text!r}")
        return text.lower() in _ON
    if not re.fullmatch(_NUMBER, text):
        raise DomainError(f"{parameter.name} is a number in the program, and {text!r} is none")
    if _is_whole(parameter):
        if float(text) != int(float(text)):
            raise DomainError(f"{parameter.name} is a whole number in the program, and {text} is not")
        return int(float(text))
    return float(text)


def _is_whole(parameter: Parameter) -> bool:
    """Whether it takes whole numbers alone."""
    return type(parameter.default) is int and parameter.meaning not in _FRACTIONS


def _even(size: int) -> int:
    """A multiple of eight, where there are as many: what the units of processors and GPUs compute at once."""
    return size - size % 8 if size > 8 else size


def _round(value: float) -> float:
    return float(f"{value:.1g}")


def _plain(value: float, integer: bool) -> Value:
    return int(value) if integer else value


def _shown(value: Value) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else written(value)
