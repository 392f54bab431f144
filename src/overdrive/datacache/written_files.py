"""Whether files were written to, by whomever on this machine: the kernel tells (inotify), at 1 µs a question.

What another machine writes to a shared file system, or another process through a mapping of the file, it does not tell.
Source: inotify(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
import weakref
from collections.abc import Iterable

from overdrive.datacache.mappings import mapped_for_writing

_MODIFY, _ATTRIBUTES, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_CLOSED, _OPENED = 0x8, 0x20  # closed by one who might have written to it: through a mapping, say
_WRITES = _CLOSED | _MODIFY | _ATTRIBUTES | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
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

    def add(self, paths: Iterable[str], read_since: bool = False) -> None:
        """What is written to these counts. Where the kernel keeps no account, nothing does.

        Args:
            read_since: they were read since this was made, so that it counts if they were written to since then.
        """
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition(os.sep)
            by_folder.setdefault(folder if folder or path.startswith(os.sep) else ".", []).append(name)
        for folder, names in by_folder.items():
            self._add(self._folder(folder), set(names), read_since)
        if by_folder:
            self._look_at_mappings()

    def add_folders(self, paths: Iterable[str]) -> None:
        """Whatever is written, made or deleted in these counts."""
        for path in paths:
            self._whole.add(self._folder(path))

    def written(self) -> str | None:
        """One of them that was written to, moved or deleted, of which there is one; in the process that made this."""
        opened = False
        while self._written is None and self._account >= 0 and os.getpid() == self._process:
            try:
                events = os.read(self._account, _MOST_BYTES)
            except OSError:  # there are no more
                break
            opened |= self._look_through(events)
        if opened:
            self._look_at_mappings()
        return self._written

    def _add(self, folder: str, names: set[str], read_since: bool = False) -> None:
        new = names - self._names[folder]
        self._names[folder] |= new
        for name in new & self._others.get(folder, set()):
            self._written = os.path.join(folder, name)
        for name in new & _links_in(folder):
            target = os.path.realpath(os.path.join(folder, name))
            self._add(self._folder(os.path.dirname(target)), {os.path.basename(target)}, read_since)
        for name in new if read_since else ():
            with contextlib.suppress(OSError):
                if os.stat(path := os.path.join(folder, name)).st_ctime > self._began:
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
                self._add(self._folder(os.path.dirname(above)), {os.path.basename(above)})
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

    def _look_through(self, events: bytes) -> bool:
        """Whether one of the files was opened: perhaps to be mapped, and written to in that way."""
        place, opened = 0, False
        while place < len(events):
            number, kind, _, size = _EVENT.unpack_from(events, place)
            place += _EVENT.size
            name = os.fsdecode(events[place : place + size].rstrip(b"\0"))
            place += size
            folder = self._folders.get(number, "")
            counts = folder in self._whole or name in self._names.get(folder, ())
            if kind & _OPENED:
                opened |= counts
            elif kind & _OVERFLOW or counts:
                self._written = os.path.join(folder, name) or "one of many"
            else:
                self._others.setdefault(folder, set()).add(name)
        return opened

    def _look_at_mappings(self) -> None:
        for path in mapped_for_writing():
            folder, _, name = path.rpartition(os.sep)
            if name in self._names.get(folder, ()):
                self._written = self._written or path


def _links_in(folder: str) -> set[str]:
    try:
        with os.scandir(folder) as entries:
            return {each.name for each in entries if each.is_symlink()}
    except OSError:
        return set()
