"""A technique's settings, and a technique chosen with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str
Settings: TypeAlias = Mapping[str, Value]
Chosen: TypeAlias = tuple[str, Settings]  # a technique's name and its settings


def in_words(values: Settings) -> str:
    """`lr 0.0123, batch-size 64`."""
    return ", ".join(f"{name} {value_in_words(each)}" for name, each in values.items())


def value_in_words(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
