"""What the files of a run were before it began, on disk: no others are written when it is made again.

A line each, `[path, state, sum]`, in JSON. The sum is of this line and of all before it, so that one that is changed,
doubled or gone is seen. A line without an end was being written when the process was killed, and is let go: nothing had
been changed by then.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.survive.folder import Unusable
from overdrive.survive.journal import write_after

if TYPE_CHECKING:
    from overdrive.survive.file_states import State

_NAME = "before"
_DIGITS = 16  # of each sum
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEVER = ("/dev/", "/proc/", "/sys/")


class Before:
    """One process adds to it; others may read it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / _NAME
        self._sum, self._end = "", 0  # of the last line that is on disk: its sum, and where it ends
        self._waiting: list[tuple[str, State]] = []  # for room on the disk
        self._synced = 0

    def read(self) -> dict[str, State]:
        """Of each path, in the order in which they were changed first.

        Raises:
            Unusable: it is not what was written.
        """
        found: dict[str, State] = {}
        for line in self._lines():
            told = _parsed(line)
            if told is None or self._lies_in_run(told[0]) or _line(self._sum, *told[:2]) != line:
                raise Unusable(f"{self._path} is not what was written; --fresh begins the run anew")
            self._sum, self._end = told[2], self._end + len(line)
            found[told[0]] = told[1]
        return found

    def add(self, path: str, state: State) -> None:
        """
        Raises:
            OSError: it cannot be written; the next one writes it, too.
        """
        self._waiting.append((path, state))
        last, lines = self._sum, []
        for each in self._waiting:
            lines.append(_line(last, *each))
            last = _sum(last, *each)
        write_after(self._path, self._end, b"".join(lines))
        self._sum, self._end = last, self._end + sum(map(len, lines))
        self._waiting.clear()

    def sync(self) -> None:
        """A snapshot that outlives a power cut names files of this list."""
        if self._synced < self._end:
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            self._synced = self._end

    def _lines(self) -> Iterator[bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        yield from (line + b"\n" for line in data.split(b"\n")[:-1])

    def _lies_in_run(self, path: str) -> bool:
        return f"{path}/".startswith((f"{self._folder}/", *_NEVER))


def is_state(thing: Any) -> bool:
    """Whether what was read is one of the four that `State` names."""
    if not isinstance(thing, list) or not thing:
        return False
    kind, *rest = thing
    if kind == "absent":
        return not rest
    if kind == "link":
        return len(rest) == 1 and _is_text(rest[0])
    if kind == "folder":
        return len(rest) == 1 and _is_mode(rest[0])
    return kind == "file" and len(rest) == 2 and _is_digest(rest[0]) and _is_mode(rest[1])


def _parsed(line: bytes) -> tuple[str, State, str] | None:
    try:
        path, state, told = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    sound = _is_text(path) and os.path.isabs(path) and os.path.normpath(path) == path and is_state(state)
    return (path, state, told) if sound and isinstance(told, str) else None


def _is_text(thing: Any) -> bool:
    """That a path can be."""
    return isinstance(thing, str) and "\0" not in thing and thing != ""


def _is_digest(thing: Any) -> bool:
    return isinstance(thing, str) and _SHA256.fullmatch(thing) is not None


def _is_mode(thing: Any) -> bool:
    return type(thing) is int and 0 <= thing <= 0o7777


def _sum(last: str, path: str, state: State) -> str:
    return hashlib.sha256(f"{last}{json.dumps([path, state])}".encode()).hexdigest()[:_DIGITS]


def _line(last: str, path: str, state: State) -> bytes:
    return json.dumps([path, state, _sum(last, path, state)]).encode() + b"\n"
