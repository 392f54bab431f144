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

from overdrive.core.streams import flush


class _Counted(io.RawIOBase):
    """Standard output, past the lines that were written before.

    Attributes:
        at: how many lines the program's own process has written, and how many bytes of the line after them.
        failure: why no more is kept; the program's own output goes on.
    """

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self._open()
        with open(kept, "rb") as file:
            before = file.read()
        self._before = before.count(b"\n"), len(before) - before.rfind(b"\n") - 1
        self.at = 0, 0
        self.failure: OSError | None = None
        self.over = False  # what comes now belongs to no run that is gone on with
        self._process = os.getpid()

    def _open(self) -> None:
        self._handle = os.open(self._kept, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = _identity(self._handle)

    def close(self) -> None:
        if not self.closed and _identity(self._handle) == self._file:
            os.close(self._handle)
        super().close()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def isatty(self) -> bool:
        return os.isatty(1)

    def write(self, data: Any) -> int:
        if self.over:
            _write(1, data)
            return len(data)
        if os.getpid() != self._process:  # a loader's worker, whose lines come among the program's where they may
            if self.at[0] >= self._before[0]:
                _write(1, data)
            return len(data)
        new = b"".join(map(self._new, bytes(data).splitlines(keepends=True)))
        if new:
            _write(1, new)
            self._keep(new)
        return len(data)

    def _keep(self, new: bytes) -> None:
        try:
            if self.failure is None:
                if _identity(self._handle) != self._file:  # the program has closed all, and opened a file of its own
                    self._open()
                _write(self._handle, new)
        except OSError as error:
            self.failure = error

    def _new(self, part: bytes) -> bytes:
        """Of a line or a part of one, what was not written before."""
        (line, column), (lines, rest) = self.at, self._before
        ends = part.endswith(b"\n")
        self.at = (line + 1, 0) if ends else (line, column + len(part))
        if line < lines:
            return b""
        known = max(0, rest - column) if line == lines else 0
        return part[min(known, len(part) - ends) :]


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


def _identity(handle: int) -> tuple[int, int] | None:
    """Which file is open under this number; None where none is."""
    try:
        found = os.fstat(handle)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


class UnsavedOutput:
    """Of a process that goes along with the one whose output is kept."""

    @property
    def at(self) -> tuple[int, int]:
        """How far the program has come."""
        return 0, 0

    @property
    def failure(self) -> OSError | None:
        """Why what it prints is no longer kept."""
        return None

    def go_on_at(self, lines: int, rest: int) -> None: ...

    def mute(self, muted: bool) -> None: ...

    def leave(self) -> None:
        """The run is broken off: what is printed from here on is not kept, and nothing is silent."""


class SavedOutput(UnsavedOutput):
    """Takes the place of `sys.stdout` and `sys.stderr` of this process, for good."""

    def __init__(self, kept: Path) -> None:
        flush()
        self._errors = _Muted()
        self._counted = _Counted(kept)
        self._out = _text(self._counted, sys.stdout)
        sys.stdout = sys.__stdout__ = self._out  # type: ignore[misc]
        self._told = _text(self._errors, sys.stderr)
        sys.stderr = sys.__stderr__ = self._told  # type: ignore[misc]

    @property
    def at(self) -> tuple[int, int]:
        self._out.flush()
        return self._counted.at

    @property
    def failure(self) -> OSError | None:
        return self._counted.failure

    def go_on_at(self, lines: int, rest: int) -> None:
        """A run that was made again has come to where this was written: calls that it skipped have perhaps printed."""
        self._out.flush()
        self._counted.at = lines, rest

    def mute(self, muted: bool) -> None:
        self._told.flush()
        self._errors.muted = muted

    def leave(self) -> None:
        self._out.flush()
        self._counted.over = True
        self.mute(False)


def _text(raw: io.RawIOBase, like: Any) -> io.TextIOWrapper:
    """At each line's end it is written: a line that stays in memory is lost when the process is killed."""
    made = io.TextIOWrapper(io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=True)
    made.mode = "w"  # type: ignore[misc]
    return made
