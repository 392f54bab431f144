"""Numbers that a model's code makes of how many samples there are, and computes with: `x.sum(0) / len(x)`.

A part has fewer samples, and nothing shows where Python takes their number. But it shows where that meets a tensor: as
a number, in one of a few operations. It is another one in the whole call than in a part; where a simple rule says how
it hangs on the count, ranks put in its place what it is for all samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_NAMES = ("add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide")
_PYTHONS = ("add", "sub", "mul", "div", "truediv")
_ARITHMETIC = {*_NAMES, *(f"{name}_" for name in _NAMES)}
_ARITHMETIC |= {f"__{side}{name}__" for name in _PYTHONS for side in ("", "r", "i")}
_CLOSE = 1e-12

Noted = tuple[str, "int | float"]  # an operation, and the number that it was given


def in_arithmetic(name: str, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether this call computes with a number of Python's, which is its second argument."""
    return (
        name in _ARITHMETIC
        and len(args) == 2
        and not kwargs
        and type(args[1]) in (int, float)
        and isinstance(args[0], torch.Tensor)
    )


@dataclass(frozen=True)
class Rule:
    """How a number hangs on how many samples there are; `times`: it is so many times that, and so on."""

    kind: str
    of: int | float

    def number(self, count: int) -> int | float:
        if self.kind == "times":
            return self.of * count
        return self.of + count if self.kind == "more" else self.of / count

    def holds(self, number: int | float, count: int) -> bool:
        own = self.number(count)
        return type(own) is type(number) and math.isclose(own, number, rel_tol=_CLOSE)


def _rules(number: int | float, count: int) -> Iterator[Rule]:
    """Those by which it is that, of so many."""
    if type(number) is float:
        yield Rule("times", number / count)
        yield Rule("share", number * count)
    elif number % count == 0:
        yield Rule("times", number // count)
    yield Rule("more", number - count)


@dataclass(frozen=True)
class Number:
    """One of a call's, in their order; `rule`: None where it was the same in the whole and in a part, as
    `min(len(x), 16)` is of many samples (see `Way.tried`)."""

    name: str
    rule: Rule | None = None


@dataclass(frozen=True)
class Numbers:
    """Those of a call."""

    each: tuple[Number, ...]

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Numbers:
        each = tuple(Number(one["name"], one["rule"] and Rule(**one["rule"])) for one in told["each"])
        return cls(each)

    def of_all(self, place: int, name: str, number: int | float, own: int, rows: int) -> int | float:
        """What a part's number is for all samples.

        Args:
            place: the how manieth of the call.
            own, rows: how many samples there are in the part, and in all.

        Raises:
            ValueError: it does not hang on them as it did.
        """
        if place >= len(self.each) or self.each[place].name != name:
            raise ValueError
        rule = self.each[place].rule
        if rule is None:
            return number
        if not rule.holds(number, own):
            raise ValueError
        return rule.number(rows)


def numbers_of(whole: Sequence[Noted], part: Sequence[Noted], rows: int, own: int) -> Numbers | None:
    """What was noted of calls with so many samples; None where no number hangs on that, or not in the same way."""
    if [name for name, _ in whole] != [name for name, _ in part]:
        return None
    each = [Number(name, _rule(one, other, rows, own)) for (name, one), (_, other) in zip(whole, part, strict=True)]
    return Numbers(tuple(each)) if any(one.rule for one in each) else None


def _rule(whole: int | float, part: int | float, rows: int, own: int) -> Rule | None:
    if whole == part:
        return None
    return next((each for each in _rules(whole, rows) if each.holds(part, own)), None)
