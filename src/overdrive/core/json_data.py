"""Writes frozen dataclasses as JSON and reads them back by their type hints: one way for all that is plain data."""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """What `json.dumps` takes."""
    if is_dataclass(value):
        return {each.name: to_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value


def finite(data: Any) -> Any:
    """The same with null for numbers that JSON has not, such as the ends of an endless interval; lists for tuples."""
    if isinstance(data, dict):
        return {name: finite(each) for name, each in data.items()}
    if isinstance(data, (tuple, list)):
        return [finite(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def from_json(kind: type[T], data: Any) -> T:
    """A `kind`, from what `to_json` made of one, in another version perhaps: fields that are not there have their
    default, and those that `kind` has not are passed over.

    Raises:
        TypeError: a field without a default is not there.
    """
    return typing.cast(T, _read(kind, data))


def _read(hint: Any, data: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], value) for name, value in data.items() if name in hints})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(data)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return tuple(map(_read, arguments, data))
        return tuple(data) if arguments[0] in (str, int, float) else tuple(_read(arguments[0], each) for each in data)
    if origin is list:
        return [_read(arguments[0], each) for each in data]
    if origin in (Union, types.UnionType):
        options = [each for each in arguments if each is not type(None)]
        return data if data is None or len(options) > 1 else _read(options[0], data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _read(arguments[1], each) for key, each in data.items()}
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
