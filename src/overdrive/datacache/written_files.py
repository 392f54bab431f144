"""Whether files were written to, by whomever on this machine: the kernel tells (inotify), at 1 µs a question.

What another machine writes to a shared file system, or another process through a mapping of the file, it does not tell.
Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import time
import weakref
from collections.abc import Iterable

_MODIFY, _ATTRIBUTES, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_OPENED = 0x20
_WRITES = _MODIFY | _ATTRIBUTES | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_ONLY_FOLDERS = 0x01000000
_OVERFLOW = 0x4000  # more was written than was noted
_EVENT = struct.Struct("iIII")
_MOST_BYTES = 1 << 16
_CLOCK = 0.02  # seconds by which the times of files may lag behind


class WrittenFiles:
    """Files that are to stay as they are, from when this was made on."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._began = time.time() - _CLOCK
        self._names: dict[str, set[str]] = {}  # by folder
        self._whole: set[str] = set()  # folders of which any file counts
        self._real: dict[str, str] = {}  # folders, by the names that they are known under
        self._folders: dict[int, str] = {}  # by the kernel's number for it
        self._others: dict[str, set[str]] = {}  # what was written to in these folders, and is none of the files yet
        self._account = -1
        self._written: str | None = None

    def add(self, paths: Iterable[str]) -> None:
        """What is written to these counts. Where the kernel keeps no account, nothing does."""
        added = [self._add(path) for path in paths]
        if added:
            self._look_at_mappings(added)

    def add_folders(self, paths: Iterable[str]) -> None:
        """Whatever is written, made or deleted in these counts."""
        for path in paths:
            self._whole.add(self._folder(path))

    def written(self) -> str | None:
        """One of them that was written to, moved or deleted, of which there is one; in the process that made this."""
        opened: set[str] = set()
        while self._written is None and self._account >= 0 and os.getpid() == self._process:
            try:
                events = os.read(self._account, _MOST_BYTES)
            except OSError:  # there are no more
                break
            self._look_through(events, opened)
        if opened and self._written is None:
            self._look_at_mappings(opened)
        return self._written

    def _add(self, path: str) -> str:
        folder, _, name = path.rpartition(os.sep)
        real = self._folder(folder if folder or path.startswith(os.sep) else ".")
        whole = os.path.join(real, name)
        if name not in self._names[real]:
            self._names[real].add(name)
            if name in self._others.get(real, ()):
                self._written = whole
            self._look_at(whole)
        return whole

    def _look_at(self, path: str) -> None:
        """Where it leads to, and whether it was written to before anybody looked at its folder."""
        try:
            found = os.lstat(path)
        except OSError:
            return
        if stat.S_ISLNK(found.st_mode):
            self._add(os.path.realpath(path))
        elif stat.S_ISREG(found.st_mode) and found.st_ctime > self._began:
            self._written = self._written or path

    def _folder(self, path: str) -> str:
        """The folder's real path. What it is reached by counts among the files, where that is a link."""
        if path in self._real:
            return self._real[path]
        real = self._real[path] = os.path.realpath(path)
        self._watch(real)
        above = os.path.abspath(path)
        while above != real and len(above) > 1:
            if os.path.islink(above):
                self._add(above)
            above = os.path.dirname(above)
        return real

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
        number = libc.inotify_add_watch(self._account, os.fsencode(folder), _WRITES | _OPENED | _ONLY_FOLDERS)
        if number >= 0:
            self._folders[number] = folder

    def _look_through(self, events: bytes, opened: set[str]) -> None:
        place = 0
        while place < len(events):
            number, kind, _, size = _EVENT.unpack_from(events, place)
            place += _EVENT.size
            name = os.fsdecode(events[place : place + size].rstrip(b"\0"))
            place += size
            folder = self._folders.get(number, "")
            counts = folder in self._whole or name in self._names.get(folder, ())
            if kind & _OPENED:
                if counts:
                    opened.add(os.path.join(folder, name))
            elif kind & _OVERFLOW or counts:
                self._written = os.path.join(folder, name) or "one of many"
                return
            else:
                self._others.setdefault(folder, set()).add(name)

    def _look_at_mappings(self, paths: Iterable[str]) -> None:
        mapped = mapped_for_writing()
        if mapped:
            self._written = self._written or next((path for path in paths if path in mapped), None)


def mapped_for_writing() -> set[str]:
    """The real paths of files that this process may write to through a mapping: the kernel does not tell when."""
    found = set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                if " rw-s " in line:
                    found.add(line.rstrip("\n").split(maxsplit=5)[-1])
    except OSError:
        return set()
    return found


def is_mapped_for_writing(path: str) -> bool:
    return os.path.realpath(path) in mapped_for_writing()
