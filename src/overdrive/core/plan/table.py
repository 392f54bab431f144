"""The tables of a plan as they are read: every value is checked, and every fault names its line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.plan.lines import KeyPath, line_of, line_of_repeated
from overdrive.core.settings import Value

MOST_BYTES = 1_000_000
_MOST_LINES = 10_000  # tomlkit's time grows with the square: 1 s for these, 100 s for ten times as many
TOO_LONG = "this is too long to be a plan: 1 MB and 10,000 lines is the most"


class PlanError(Exception):
    """A plan cannot be used; the message is one sentence for people, with the line that has to change."""

    def __init__(self, message: str, line: int | None = None, name: str = "plan.toml") -> None:
        self.line = line
        where = name if line is None else f"{name} line {line}"
        super().__init__(printable(f"{where}: {message}"[:1000]))


@dataclass(frozen=True)
class _Text:
    text: str
    name: str


class TomlTable:
    """A table of the file that knows where it stands, and hands out checked values."""

    def __init__(self, text: _Text, path: KeyPath, entries: Mapping[str, Any]) -> None:
        self._text = text
        self._path = path
        self._entries = entries

    @classmethod
    def of(cls, text: str, name: str) -> TomlTable:
        source = _Text(text.removeprefix("\ufeff"), name)  # some editors begin a file with this mark
        if len(text.encode("utf-8", "replace")) > MOST_BYTES or text.count("\n") > _MOST_LINES:
            raise PlanError(TOO_LONG, None, name)
        if source.text.lstrip()[:1] == "{":
            raise PlanError("this is JSON, as a result is written by --json; a plan is TOML", None, name)
        try:
            root = cls(source, (), tomlkit.parse(source.text).unwrap())
        except (TOMLKitError, ValueError) as error:
            raise PlanError(_broken(error), _line_of(error, source.text), name) from None
        root._check_sizes(root._entries)
        return root

    def fault(self, message: str, *keys: str | int) -> PlanError:
        return PlanError(message, line_of(self._text.text, (*self._path, *keys)), self._text.name)

    def only(self, known: Sequence[str], what: str) -> None:
        for key in self._entries:
            if key not in known:
                raise self.fault(f"{what} has no {key!r}{closest(key, known)}", key)

    def has(self, key: str) -> bool:
        return key in self._entries

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required where there is no default."""
        if key not in self._entries and default is not None:
            return default
        value = self._need(key)
        if not isinstance(value, str):
            raise self.fault(f"{key} must be a text, not {value!r}", key)
        if default is None and not value.strip():
            raise self.fault(f"{key} must not be empty", key)
        return value

    def number(self, key: str) -> float | None:
        """A finite number of 0 or more; None where it is not given."""
        value = self._entries.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise self.fault(f"{key} must be a number of 0 or more, not {value!r}", key)
        return float(value)

    def whole(self, key: str) -> int | None:
        value = self._entries.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fault(f"{key} must be a whole number of 0 or more, not {value!r}", key)
        return value

    def flag(self, key: str) -> bool:
        """True or false; false where it is not given."""
        value = self._entries.get(key, False)
        if not isinstance(value, bool):
            raise self.fault(f"{key} must be true or false, not {value!r}", key)
        return value

    def one_of(self, key: str, default: Contract) -> Contract:
        if key not in self._entries:
            return default
        value = self.text(key)
        names = [level.value for level in Contract]
        if value not in names:
            raise self.fault(f"{key} must be one of {', '.join(names)}, not {value!r}", key)
        return Contract(value)

    def interval(self, key: str) -> Interval | None:
        if key not in self._entries:
            return None
        table = self.table(key)
        table.only(("low", "estimate", "high"), key)
        for part in ("low", "estimate", "high"):
            table._need(part)
        low, estimate = table.number("low") or 0.0, table.number("estimate") or 0.0
        # One pair of blocks gives an interval without an upper bound: the only infinity that a plan may hold.
        endless = table._entries["high"] == math.inf
        high = math.inf if endless else table.number("high") or 0.0
        if not low <= estimate <= high:
            raise self.fault(f"{key} must rise from low over estimate to high", key)
        return Interval(low, estimate, high)

    def scalars(self, key: str) -> dict[str, Value]:
        table = self.table(key)
        for name, value in table._entries.items():
            if not isinstance(value, (bool, int, float, str)):
                raise table.fault(f"{name} must be a text, a number, true or false, not {value!r}", name)
        return dict(table._entries)

    def numbers(self, key: str, known: Sequence[str]) -> dict[str, float]:
        table = self.table(key)
        table.only(known, key)
        return {name: number for name in table._entries if (number := table.number(name)) is not None}

    def texts(self, key: str) -> dict[str, str]:
        table = self.table(key)
        return {name: table.text(name, "") for name in table._entries}

    def anything(self, key: str) -> dict[str, Any]:
        """A table as it is, where nothing depends on it; dates as texts."""
        table = self.table(key)
        return {name: _plain(value) for name, value in table._entries.items()}

    def table(self, key: str) -> TomlTable:
        value = self._entries.get(key, {})
        if not isinstance(value, Mapping):
            raise self.fault(f"{key} must be a table, not {value!r}", key)
        return TomlTable(self._text, (*self._path, key), value)

    def tables(self, key: str) -> list[TomlTable]:
        value = self._entries.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise self.fault(f"{key} must be given as [[{key}]] tables", key)
        return [TomlTable(self._text, (*self._path, key, index), each) for index, each in enumerate(value)]

    def day(self, key: str) -> str:
        value = self._entries.get(key, "")
        if isinstance(value, (date, datetime)):
            return value.isoformat()
        try:
            if value != "":
                datetime.fromisoformat(value.replace("Z", "+00:00"))
        except (AttributeError, TypeError, ValueError):
            raise self.fault(f"{key} must be a date such as 2026-01-31, not {value!r}", key) from None
        return str(value)

    def _check_sizes(self, value: Any, *keys: str | int) -> None:
        """TOML's whole numbers have 64 bits; of longer ones, Python refuses to print even an error."""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise self.fault(f"{keys[-1]} has more digits than a number in TOML can have", *keys)
        entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for key, each in entries:
            self._check_sizes(each, *keys, key)

    def _need(self, key: str) -> Any:
        if key not in self._entries:
            raise self.fault(f"{key} is missing{' here' if self._path else ''}")
        return self._entries[key]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def closest(name: str, known: Sequence[str]) -> str:
    """What may have been meant, to stand after the unknown name."""
    if close := difflib.get_close_matches(name[:100], known, n=3, cutoff=0.5):
        return f" (closest: {', '.join(close)})"
    return f" (known: {', '.join(known)})" if 0 < len(known) <= 10 else ""


def _broken(error: Exception) -> str:
    reason = str(error).split(" at line ")[0].rstrip(".")
    if reason.endswith(r"'\x00'"):  # what tomlkit reads behind the last character
        reason = "it ends too early"
    return f"this is no valid TOML ({reason[:200]})"


def _line_of(error: Exception, text: str) -> int | None:
    """tomlkit says where it stopped, which for a key given twice is its table's end, or nothing."""
    return line_of_repeated(text) or getattr(error, "line", None)


def escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str) -> str:
    return "".join(each if each.isprintable() else escape(each) for each in text)
