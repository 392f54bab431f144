"""What the program writes to standard output and error: each line once, however often the run is begun again.

All of standard output is kept in the run's folder as well. A run that begins again writes its lines anew: as many as
are there already are let go.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any


class _Counted(io.RawIOBase):
    """Standard output, past the lines that were written before."""

    def __init__(self, kept: Path) -> None:
        self._handle = os.open(kept, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(kept, "rb") as file:
            before = file.read()
        self._lines = before.count(b"\n")  # of which none is to come again
        self._rest = len(before) - before.rfind(b"\n") - 1  # bytes of the line after them

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def isatty(self) -> bool:
        return os.isatty(1)

    def write(self, data: Any) -> int:
        new = bytes(data)
        while self._lines and new:
            _, newline, new = new.partition(b"\n")
            self._lines -= len(newline)
        if self._rest and not self._lines and new:
            end = new.find(b"\n")
            known = min(self._rest, len(new) if end < 0 else end)
            new = new[known:]
            self._rest = 0 if new else self._rest - known
        if new:
            _write(1, new)
            _write(self._handle, new)
        return len(data)


class _Muted(io.RawIOBase):
    """Standard error, which is silent while `muted`."""

    muted = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, data: Any) -> int:
        if not self.muted:
            _write(2, bytes(data))
        return len(data)


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


class Output:
    """Takes the place of `sys.stdout` and `sys.stderr` of this process, for good."""

    def __init__(self, kept: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._errors = _Muted()
        sys.stdout = sys.__stdout__ = _text(_Counted(kept), sys.stdout)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _text(self._errors, sys.stderr)  # type: ignore[misc]

    def mute(self, muted: bool) -> None:
        sys.stderr.flush()
        self._errors.muted = muted


def _text(raw: io.RawIOBase, like: Any) -> io.TextIOWrapper:
    """At each line's end it is written: a line that stays in memory is lost when the process is killed."""
    made = io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=True)
    made.mode = "w"  # type: ignore[misc]
    return made
