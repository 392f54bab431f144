"""Whether files were written to, by whomever on this machine: the kernel tells (inotify), at 1 µs a question.

A file that was opened may have been mapped, and be written to in that way. A batch opens hundreds, so that those events
are taken in together, unread; after them one looks at what this process has mapped.

What another machine writes to a shared file system, or another process through a mapping of the file, it does not tell.
Files in folders that the kernel keeps no account of (it has room for so many only) are looked at one by one.
Source: inotify(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import struct
import time
import weakref
from collections.abc import Iterable

from overdrive.changes.mappings import mapped_for_writing, mappings_made

_MODIFY, _ATTRIBUTES, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETED_ITSELF, _MOVED_ITSELF = 0x400, 0x800
_CLOSED, _OPENED = 0x8, 0x20  # closed by one who might have written to it: through a mapping, say
_WRITES = _CLOSED | _MODIFY | _ATTRIBUTES | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_ITSELF = _DELETED_ITSELF | _MOVED_ITSELF
_ONLY_FOLDERS = 0x01000000
_ADDED = 0x20000000  # to what the same is watched for
_OVERFLOW = 0x4000  # more was written than was noted
_EVENT = struct.Struct("iIII")
_MOST_BYTES = 1 << 16
_MOST_LOOKED_AT = 300  # files, 1.5 µs each, in folders without an account
_MOST_LINKED = 2000  # files of a folder, of which it is asked whether they have other names: 2 µs each
_FEW = 64  # files that are looked at one by one; of more their whole folder is
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
        self._account = self._openings = -1  # what the kernel keeps account of; of openings none need be told apart
        self._news: select.epoll | None = None  # says whether either has anything to tell
        self._written: str | None = None
        self._accounted: set[str] = set()
        self._above: set[str] = set()  # folders that are to stay where they are
        self._inodes: dict[int, str] = {}  # files that have other names, by the kernel's number for them
        self._looked_at: dict[str, tuple[int, ...]] = {}  # without an account
        self._mappings = mappings_made()

    def add(self, paths: Iterable[str], read_since: bool = False) -> None:
        """What is written to these counts; where a path ends with a separator, whatever is written in that folder.

        Args:
            read_since: they were read since this was made, so that it counts if they were written to since then.
        """
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition(os.sep)
            by_folder.setdefault(folder or (os.sep if path.startswith(os.sep) else "."), []).append(name)
        for folder, names in by_folder.items():
            if "" in names:
                self.add_folders([folder], read_since)
            self._add(self._folder(folder), set(names) - {""}, read_since)
        if by_folder:
            self._look_at_mappings()

    def add_folders(self, paths: Iterable[str], listed_since: bool = False) -> None:
        """Whatever is written, made or deleted in these counts.

        Args:
            listed_since: see `add`.
        """
        for path in paths:
            self._whole.add(folder := self._folder(path))
            if folder not in self._accounted:
                self._look_at(folder)
            if listed_since and (self._others.get(folder) or _last_change(folder) > self._began):
                self._written = self._written or folder

    def written(self) -> str | None:
        """One of them that was written to, moved or deleted, of which there is one; in the process that made this."""
        if os.getpid() != self._process:
            return self._written
        if self._quiet():
            return self._written
        while self._written is None and (events := _read(self._account)):
            self._look_through(events)
        if _read(self._openings) or self._mappings != mappings_made():
            self._mappings = mappings_made()
            self._look_at_mappings()
        if self._looked_at and self._written is None:
            self._written = next((path for path, was in self._looked_at.items() if _status(path) != was), None)
        return self._written

    def _quiet(self) -> bool:
        """Whether there is nothing new, told by one question to the kernel."""
        if self._looked_at or self._mappings != mappings_made():
            return False
        return not self._news.poll(0) if self._news is not None else self._account < 0 and self._openings < 0

    def _add(self, folder: str, names: set[str], read_since: bool = False) -> None:
        new = names - self._names[folder]
        self._names[folder] |= new
        for name in new & self._others.get(folder, set()):
            self._written = os.path.join(folder, name)
        for name in _links_among(new, folder):
            target = os.path.realpath(os.path.join(folder, name))
            self._add(self._folder(os.path.dirname(target)), {os.path.basename(target)}, read_since)
        if folder not in self._accounted:
            for name in new:
                self._look_at(os.path.join(folder, name))
        elif len(new) <= _MOST_LINKED:
            self._watch_linked([os.path.join(folder, name) for name in new])
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
        """Nothing of it counts yet, but that it, and what it lies in, stay where they are."""
        if folder in self._names:
            return
        self._names[folder] = set()
        if (above := os.path.dirname(folder)) != folder and not os.path.isdir(folder):
            self._watch(above)  # it may come to be there
            self._accounted.add(folder)
            return self._add(above, {os.path.basename(folder)})
        self._above.add(folder)
        number = self._asked(folder, _WRITES | _ITSELF | _ONLY_FOLDERS)
        if number >= 0 and self._asked(folder, _OPENED | _ONLY_FOLDERS, openings=True) >= 0:
            self._folders[number] = folder
            self._accounted.add(folder)
        while above not in self._above and above != os.path.dirname(above):
            self._above.add(above)
            if (number := self._asked(above, _ITSELF | _ONLY_FOLDERS | _ADDED)) >= 0:
                self._folders.setdefault(number, above)
            above = os.path.dirname(above)

    def _watch_linked(self, paths: list[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                if os.stat(path).st_nlink > 1 and os.path.isfile(path):
                    self._inodes[self._asked(path, _MODIFY | _ATTRIBUTES | _CLOSED)] = path

    def _asked(self, path: str, events: int, openings: bool = False) -> int:
        """The number under which the kernel tells of these; below 0 where it does not."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            return -1
        if self._account < 0:
            self._account, self._openings = (libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK) for _ in range(2))
            accounts = [each for each in (self._account, self._openings) if each >= 0]
            for account in accounts:
                weakref.finalize(self, os.close, account)
            with contextlib.suppress(OSError):  # there may be too many files open
                news = select.epoll()
                for account in accounts:
                    news.register(account, select.EPOLLIN)
                self._news = news
        account = self._openings if openings else self._account
        return int(libc.inotify_add_watch(account, os.fsencode(path), events))

    def _look_at(self, path: str) -> None:
        if len(self._looked_at) >= _MOST_LOOKED_AT:
            self._written = self._written or f"{path} cannot be watched"
        self._looked_at[path] = _settled(path)

    def _look_through(self, events: bytes) -> None:
        place = 0
        while place < len(events):
            number, kind, _, size = _EVENT.unpack_from(events, place)
            place += _EVENT.size
            name = os.fsdecode(events[place : place + size].rstrip(b"\0"))
            place += size
            if kind & _ITSELF or number in self._inodes:
                self._written = self._inodes.get(number) or self._folders.get(number) or "a folder of it"
                continue
            folder = self._folders.get(number, "")
            if kind & _OVERFLOW or folder in self._whole or name in self._names.get(folder, ()):
                self._written = os.path.join(folder, name) or "one of many"
            else:
                self._others.setdefault(folder, set()).add(name)

    def _look_at_mappings(self) -> None:
        for path in mapped_for_writing():
            folder, _, name = path.rpartition(os.sep)
            if name in self._names.get(folder, ()):
                self._written = self._written or path


def _read(account: int) -> bytes:
    """What is new; nothing where nothing is."""
    try:
        return os.read(account, _MOST_BYTES) if account >= 0 else b""
    except OSError:
        return b""


def _status(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _settled(path: str) -> tuple[int, ...]:
    """Its status once the clock of files has gone on since it was written to: a write from now on gives it another."""
    while (found := _status(path)) and abs(time.time() - found[-1] / 1e9) < _CLOCK:
        time.sleep(_CLOCK / 4)
    return found


def _last_change(folder: str) -> float:
    """When the folder, or one of the files in it, was last written to: in seconds since 1970."""
    try:
        with os.scandir(folder) as entries:
            return max([os.stat(folder).st_ctime, *(each.stat().st_ctime for each in entries if each.is_file())])
    except OSError:
        return math.inf


def _links_among(names: set[str], folder: str) -> set[str]:
    if len(names) <= _FEW:
        return {name for name in names if os.path.islink(os.path.join(folder, name))}
    try:
        with os.scandir(folder) as entries:
            return names & {each.name for each in entries if each.is_symlink()}
    except OSError:
        return set()
