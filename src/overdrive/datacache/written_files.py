"""Whether files were written to, by whomever on this machine: the kernel tells (inotify), at 1 µs a question.

What another machine writes to a shared file system, or a process through a mapping of the file, it does not tell.
Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Iterable

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_WRITES = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_ONLY_FOLDERS = 0x01000000
_OVERFLOW = 0x4000  # more was written than was noted
_EVENT = struct.Struct("iIII")
_MOST_BYTES = 1 << 16


class WrittenFiles:
    """Files that are to stay as they are."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._names: dict[str, set[str]] = {}  # by folder
        self._folders: dict[int, str] = {}  # by the kernel's number for it
        self._account = -1
        self._written: str | None = None

    def add(self, paths: Iterable[str]) -> None:
        """What is written to these from now on counts. Where the kernel keeps no account, nothing does."""
        real: dict[str, str] = {}
        for path in paths:
            folder, _, name = path.rpartition(os.sep)
            if folder not in real:
                real[folder] = os.path.realpath(folder if folder or path.startswith(os.sep) else ".")
                self._watch(real[folder])
            self._names[real[folder]].add(name)

    def written(self) -> str | None:
        """One of them that was written to, moved or deleted, of which there is one; in the process that made this."""
        while self._written is None and self._account >= 0 and os.getpid() == self._process:
            try:
                events = os.read(self._account, _MOST_BYTES)
            except OSError:  # there are no more
                break
            self._look_through(events)
        return self._written

    def _watch(self, folder: str) -> None:
        if folder in self._names:
            return
        self._names[folder] = set()
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            return
        if self._account < 0:
            self._account = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if self._account < 0:
                return
            weakref.finalize(self, os.close, self._account)
        number = libc.inotify_add_watch(self._account, os.fsencode(folder), _WRITES | _ONLY_FOLDERS)
        if number >= 0:
            self._folders[number] = folder

    def _look_through(self, events: bytes) -> None:
        place = 0
        while place < len(events):
            number, kind, _, size = _EVENT.unpack_from(events, place)
            place += _EVENT.size
            name = os.fsdecode(events[place : place + size].rstrip(b"\0"))
            place += size
            folder = self._folders.get(number, "")
            if kind & _OVERFLOW or name in self._names.get(folder, ()):
                self._written = os.path.join(folder, name) or "one of many"
                return


def is_mapped_for_writing(path: str) -> bool:
    """Whether this process has a mapping of the file through which it may be written to."""
    try:
        real = os.path.realpath(path)
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            return any(line.split(maxsplit=5)[1] == "rw-s" for line in maps if line.rstrip("\n").endswith(" " + real))
    except OSError:
        return False
