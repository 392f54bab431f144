"""Reads results that may lack parts, be broken or hostile: nothing from a file is trusted.

`read` does so for a whole dataclass. Text passes through `word`, numbers through `number`,
speed-ups through `interval`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from overdrive.core.interval import Interval
from overdrive.core.json_data import to_json

T = TypeVar("T")

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]?"
)
# Cc controls, Cf invisible formatting (right-to-left overrides too), Cs lone surrogates, Zl and Zp separators
_INERT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_UNIONS = (Union, UnionType)
_LIMIT = 400  # characters


def unescaped(text: str) -> str:
    """As one line without escapes or control characters, as long as it is."""
    text = _ESCAPES.sub("", text)
    return "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c) not in _INERT)


def word(value: object, limit: int = _LIMIT) -> str:
    """Any value as one line of harmless text: no escapes or control characters, cut at `limit` characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = " ".join(unescaped(str(value)).split())
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


def interval(value: object) -> Interval | None:
    """A speed-up as an Interval; None where one of its numbers is missing, impossible or out of order."""
    data = mapping(value)
    low, estimate, high = (positive(data.get(key)) for key in ("low", "estimate", "high"))
    if low is None or estimate is None or high is None or not 1e-6 < low <= estimate <= high < 1e6:
        return None
    return Interval(low, estimate, high)


def read(kind: type[T], data: object) -> T:
    """A dataclass of plain data, from what a file says of it: each field that is missing or broken has its default.

    Of a field's metadata, "limit" is the most characters of a text, and "positive" says that a number is above 0.
    """
    given = mapping(data)
    found = {}
    for name, (hint, metadata) in _fields(cast(Any, kind)).items():
        if name in given and (value := _part(hint, given[name], metadata)) is not None:
            found[name] = value
    return kind(**found)


def harmless(result: T) -> T:
    """The same dataclass as `read` would have it, whoever made it."""
    return read(type(result), to_json(result))


def _part(hint: Any, value: object, metadata: Mapping[str, Any]) -> Any:
    """None where it is not what `hint` says."""
    kind = next(each for each in get_args(hint) if each is not NoneType) if get_origin(hint) in _UNIONS else hint
    if kind is Interval:
        return interval(value)
    if is_dataclass(kind):
        return read(cast(Any, kind), value) if mapping(value) else None
    if kind is bool:
        return value if isinstance(value, bool) else None
    if kind in (int, float):
        found = positive(value) if metadata.get("positive") else number(value)
        return int(found) if found is not None and kind is int else found
    if kind is str:
        return word(value, metadata.get("limit", _LIMIT)) if isinstance(value, (str, int, float)) else None
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _items(arguments[0], value) if isinstance(value, (list, tuple)) else None
    assert issubclass(origin, Mapping)
    if not isinstance(value, Mapping) or arguments[1] is Any:
        return value if isinstance(value, Mapping) else None
    if arguments[1] is float:
        return {word(key, 60): known for key, each in value.items() if (known := number(each)) is not None}
    return {word(key, 60): word(each, 120) for key, each in value.items()}


def _items(kind: Any, value: Sequence[object]) -> tuple[Any, ...]:
    """Of what may be None the places are kept; of all else, what is broken is left out."""
    found = tuple(_part(kind, each, {"limit": 1000}) for each in value)
    return found if get_origin(kind) in _UNIONS else tuple(each for each in found if each not in (None, ""))


@cache
def _fields(kind: type) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    hints = get_type_hints(kind)
    return {each.name: (hints[each.name], each.metadata) for each in fields(kind)}
