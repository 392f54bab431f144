"""Finds the lines of keys and tables in a TOML text, so that an error can name the line.

tomlkit reads the first lines alone, more or fewer of them: what is there with a line, and not without it, stands in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

KeyPath = tuple[str | int, ...]  # ("technique", 0, "settings", "workers"): names, and indexes in arrays
_MARK = "overdrive-looks-for-this-line"


def line_of(text: str, path: KeyPath) -> int:
    """The line, from 1, of this key or table of a valid text, or else of the nearest table that holds it."""
    document = tomlkit.parse(text).unwrap()
    while path and not _has(document, path):
        path = path[:-1]
    if not path:
        return 1
    lines = text.split("\n")
    first, last = _span(lines, lambda found: isinstance(found, dict) and _has(found, path))
    return first if first == last else first + _lines_before(_joined(lines[first - 1 : last]), path)


def line_of_repeated(text: str) -> int | None:
    """The line where the first key or table begins that is given again; None where there is none."""
    return _span(text.split("\n"), _repeats)[0] if _repeats(_read(text)) else None


def _span(lines: list[str], reached: Callable[[dict[str, Any] | str], bool]) -> tuple[int, int]:
    """The first and the last line of the entry with which this is reached; with all lines it is."""
    low, high = 0, len(lines)
    while high - low > 1:
        for middle in sorted(range(low + 1, high), key=lambda count: abs(2 * count - low - high)):
            found = _read(_joined(lines[:middle]))
            if reached(found):
                high = middle
                break
            if isinstance(found, dict):
                low = middle
                break
        else:  # all lines between are amid a value of several lines
            break
    return low + 1, high


def _lines_before(entry: str, path: KeyPath) -> int:
    """How many lines of one entry, such as a list of several lines, come before this part of it."""
    document = tomlkit.parse(entry)
    while not _has(document, path):  # it knows nothing of the table that it stands in
        path = path[1:]
    holder: Any = document
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = _MARK
    return document.as_string().partition(_MARK)[0].count("\n")


def _has(item: Any, path: KeyPath) -> bool:
    try:
        for key in path:
            item = item[key]
    except (LookupError, TypeError):
        return False
    return True


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _read(text: str) -> dict[str, Any] | str:
    """What stands there, or what is wrong with it."""
    try:
        return tomlkit.parse(text).unwrap()
    except (TOMLKitError, ValueError) as error:
        return str(error)


def _repeats(found: dict[str, Any] | str) -> bool:
    return isinstance(found, str) and ("already exists" in found or "Redefinition" in found)
