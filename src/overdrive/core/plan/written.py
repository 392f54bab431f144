"""Values as a plan's file has them: TOML, on one line, in characters that can be shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from overdrive.core.interval import Interval
from overdrive.core.plan.table import escape, printable


def given(**entries: Any) -> list[str]:
    """A line for every entry that says something."""
    return [
        f"{_key(key)} = {toml(value)}"
        for key, value in entries.items()
        if value not in (None, "", {}) and value != math.inf
    ]


def toml(value: Any) -> str:
    """A TOML value on one line."""
    if isinstance(value, Interval):
        value = {"low": value.low, "estimate": value.estimate, "high": value.high}
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):  # NumPy's floats are floats, but their repr is no TOML
        return float.__repr__(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {toml(each)}" for key, each in value.items() if each is not None]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, Iterable):
        return "[" + ", ".join(toml(each) for each in value if each is not None) + "]"
    raise TypeError(f"a plan cannot hold {value!r}")


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else _quoted(name)


def _quoted(text: str) -> str:
    """A TOML string of printable characters only, so that showing the file cannot steer a terminal."""
    plain = text.encode("utf-8", "replace").decode()  # half a surrogate pair has no place in TOML
    quoted = json.dumps(plain, ensure_ascii=False)
    return "".join(each if each.isprintable() else escape(each) for each in quoted)


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))
