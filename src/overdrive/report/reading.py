"""Reads a result that may lack parts, be broken or hostile: nothing from a file is trusted.

Text passes through `word`, numbers through `number`, speed-ups through `interval`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]?"
)
# Cc controls, Cf invisible formatting (right-to-left overrides too), Cs lone surrogates, Zl and Zp separators
_INERT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def word(value: object, limit: int = 400) -> str:
    """Any value as one line of harmless text: no escapes or control characters, cut at `limit` characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _ESCAPES.sub("", str(value))
    text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c) not in _INERT)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def positive(value: object) -> float | None:
    """A finite number above zero, or None."""
    found = number(value)
    return found if found is not None and found > 0 else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list; whatever else is in it is left out."""
    return [item for item in sequence(value) if isinstance(item, Mapping)]


@dataclass(frozen=True)
class Interval:
    """A speed-up with its 95 % interval; 1 is the speed of what it was compared with."""

    low: float
    estimate: float
    high: float

    def words(self) -> tuple[str, str, str]:
        """Low, estimate and high as text, rounded outwards: the interval is never shown too narrow."""
        values = (self.low, self.estimate, self.high)
        places = 2 if self.low < 2 else 1 if self.low < 100 else 0
        if any(value != 1 and round(value, places) == 1 for value in values):
            places = 3
        ways = (ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_CEILING)
        step = Decimal(1).scaleb(-places)
        low, estimate, high = (f"{Decimal(repr(v)).quantize(step, w):,}" for v, w in zip(values, ways, strict=True))
        return low, estimate, high

    def __str__(self) -> str:
        low, estimate, high = self.words()
        return f"{estimate}x [{low}, {high}]"


def interval(value: object) -> Interval | None:
    """A speed-up as an Interval; None where one of its numbers is missing, impossible or out of order."""
    data = mapping(value)
    low, estimate, high = (positive(data.get(key)) for key in ("low", "estimate", "high"))
    if low is None or estimate is None or high is None or not 1e-6 < low <= estimate <= high < 1e6:
        return None
    return Interval(low, estimate, high)
