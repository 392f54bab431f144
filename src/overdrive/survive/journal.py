"""What the program learned from its tensors, in order: read again when the run is made again.

An entry is a list of JSON: its kind, and what belongs to it. Numbers come back bit for bit: JSON in Python writes the
shortest decimals that mean the same double. On disk it is a text file, an entry a line, to which each snapshot adds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

Entry = list[Any]
FETCH = "fetch"  # the kind of an entry that holds what was asked in one fetch of samples
NOTHING = ["plain", None]  # what is told of None (see `structure.told`), as most calls return it
TIME_IN_LIBRARY = "time in a library"  # of one that holds a line, and what it was told; such have no order


class Diverged(Exception):
    """The program asks for something else than it did the first time; the message says for what."""


class Damaged(Exception):
    """A file is not what was written; the message says which and how."""


class Unreadable(Damaged):
    """It may be what was written: it cannot be read just now."""


def not_read(what: str, error: OSError) -> Damaged:
    """`Unreadable`, but of a file that is not there."""
    kind = Damaged if isinstance(error, FileNotFoundError) else Unreadable
    return kind(f"{what} cannot be read: {error.strerror}")


class Journal:
    """
    Attributes:
        to_come: entries that the program has still to ask for again.
        times: what lines of libraries were told, in their order.
        written: bytes that lie on disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new: list[Entry] = []
        self.to_come: deque[Entry] = deque()
        self.times: dict[str, list[float]] = {}
        self.written = 0
        self._sum = hashlib.sha256()

    def add(self, *entry: Any) -> Entry:
        """Returns it as it will be written: it may be added to until then."""
        self._new.append(list(entry))
        return self._new[-1]

    @property
    def count(self) -> int:
        """Of entries that are not on disk yet."""
        return len(self._new)

    def drop(self) -> None:
        """What is new: another rank writes it."""
        self._new.clear()

    def next(self, kind: str, told: str) -> Entry:
        """The next entry, which must be of this kind.

        Raises:
            Diverged: it is another one, or there is none.
        """
        self._pass_fetches()
        if not self.to_come:
            raise Diverged(f"it asks for {told} where nothing was asked for")
        entry = self.to_come.popleft()
        if entry[0] != kind:
            raise Diverged(f"it asks for {told} where it asked for something else")
        return entry

    @property
    def is_over(self) -> bool:
        """Whether the program has asked for all again."""
        self._pass_fetches()
        return not self.to_come

    def fetch(self, key: str) -> list[Entry]:
        """What the fetch of this key asked, where it comes next; what those before it asked is let go."""
        for place, entry in enumerate(self.to_come):
            if entry[0] != FETCH:
                break
            if entry[1] == key:
                for _ in range(place + 1):
                    self.to_come.popleft()
                return list(entry[2])
        return []

    def _pass_fetches(self) -> None:
        """Fetches whose samples come from what is kept now, and ask nothing."""
        while self.to_come and self.to_come[0][0] == FETCH:
            self.to_come.popleft()

    def peek(self, kind: str) -> bool:
        self._pass_fetches()
        return bool(self.to_come) and self.to_come[0][0] == kind

    def flush(self) -> tuple[int, str]:
        """Write what is new, for good; the length of the file, and the sha256 of all of it.

        Raises:
            OSError: it cannot be written; the next one writes it, too.
        """
        new, self._new = self._new, []
        lines = b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in new)
        try:
            write_after(self._path, self.written, lines, for_good=True)
        except OSError:
            self._new = new + self._new
            raise
        self.written += len(lines)
        self._sum.update(lines)
        return self.written, self._sum.hexdigest()

    def read(self, length: int, digest: str) -> None:
        """Have the first `length` bytes come again.

        Raises:
            Damaged: they are not those that were written.
        """
        lines: deque[bytes] = deque()
        found, left = hashlib.sha256(), length
        try:
            with open(self._path, "rb") as file:
                while line := file.readline(left):
                    lines.append(line)
                    found.update(line)
                    left -= len(line)
        except OSError as error:
            raise not_read(self._path.name, error) from None
        if left or found.hexdigest() != digest:
            raise Damaged(f"{self._path.name} is not what was written")
        self.to_come, self.times = deque(), {}
        while lines:  # each is let go as it is read: of a long run over a large data set they take gigabytes
            entry = json.loads(lines.popleft())
            if entry[0] == TIME_IN_LIBRARY:
                self.times.setdefault(entry[1], []).append(entry[2])
            else:
                self.to_come.append(entry)
        self.written, self._sum = length, found


def write_after(path: Path, end: int, lines: bytes, for_good: bool = False) -> None:
    """Have these follow the first `end` bytes: what lies there was cut off, or written after the last snapshot.

    Raises:
        OSError: they cannot be written.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(handle, end)
        os.lseek(handle, end, os.SEEK_SET)
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(lines)
        if for_good:
            os.fsync(handle)
    finally:
        os.close(handle)
