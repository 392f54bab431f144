"""A technique's settings, and a technique chosen with its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str
Settings: TypeAlias = Mapping[str, Value]
Chosen: TypeAlias = tuple[str, Settings]  # a technique's name and its settings
