"""Reads packed files from their shards: as the real file object, with the very same bytes, or not at all."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import resource
import sys
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overdrive.datacache.shards import Entry, PackError, entries_of, shards_of

# What is known of a packed file, one byte each, shared with forked workers.
_UNKNOWN, _SAME, _OWN_PLACE = 0, 1, 2


class Packed:
    """The files of a pack, for one session.

    Args:
        index: the pack's index file.
        warn: told in one sentence, once, that something is damaged.

    Raises:
        PackError: the pack cannot be used.
    """

    def __init__(self, index: Path, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._shards: list[str] = []
        # Path to number, and columns by number: a million tuples would take three times the memory, and
        # forked workers would copy them by counting references.
        self._numbers: dict[str, int] = {}
        self._columns = tuple(array("q") for _ in range(5))  # shard, offset, size, modified, crc
        faults = []
        for tar in shards_of(index):
            try:
                self._take(str(tar), entries_of(tar))
            except PackError as error:
                faults.append(str(error))
        if not self._numbers:
            raise PackError(f"{faults[0]}; run `overdrive pack` again" if faults else "the pack is empty")
        self._folders = {os.path.dirname(path) for path in self._numbers}
        self._folders |= {parent for folder in self._folders for parent in _parents(folder)}
        self._known = mmap.mmap(-1, len(self._numbers) + 1)  # the last one: whether it was warned
        self._handles: dict[int, int] = {}
        # Shards stay open, for opening is what costs on a parallel file system; but the program needs handles too.
        self._most_handles = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._real_folders: dict[str, str] = {}
        if faults:
            self._tell(faults[0])
        _Writes.listen(self)

    def _take(self, tar: str, entries: list[Entry]) -> None:
        for path, *numbers in entries:
            if path not in self._numbers:
                self._numbers[path] = len(self._numbers)
                for column, value in zip(self._columns, (len(self._shards), *numbers), strict=True):
                    column.append(value)
        self._shards.append(tar)

    def close(self) -> None:
        _Writes.forget(self)
        handles, self._handles = self._handles, {}
        self._numbers = {}
        self._most_handles = 0
        for handle in handles.values():
            with contextlib.suppress(OSError):
                os.close(handle)

    def open(self, given: Any) -> io.BufferedReader | None:
        """The file, as `open(given, "rb")` would give it; None where it is to be read from its own place."""
        number = self._numbers.get(self._key(given))
        if number is None:
            return None
        if self._known[number] == _UNKNOWN:
            self._known[number] = _SAME if self._unchanged(given, number) else _OWN_PLACE
        if self._known[number] == _OWN_PLACE:
            return None
        sys.audit("open", given, "r", os.O_RDONLY | os.O_CLOEXEC)  # as the real one, for all who listen
        return io.BufferedReader(_Content(self, number, given))

    def size(self, number: int) -> int:
        return self._columns[2][number]

    def _unchanged(self, given: Any, number: int) -> bool:
        try:
            status = os.stat(given)
        except OSError:
            return False
        _, _, size, modified, _ = (column[number] for column in self._columns)
        return (status.st_size, status.st_mtime_ns) == (size, modified)

    def content(self, number: int) -> bytes | None:
        """What is in the file; None where the shard is damaged."""
        shard, offset, size, _, crc = (column[number] for column in self._columns)
        try:
            content = self._read(shard, offset, size)
        except OSError:
            content = b""
        # Summed each time: 100 kB take 0.1 ms or less, decoding them 1 ms and more.
        if len(content) == size and zlib.crc32(content) == crc:
            return content
        self._known[number] = _OWN_PLACE
        if self._numbers:  # else the session has ended
            self._tell(f"{self._shards[shard]} is damaged")
        return None

    def _read(self, shard: int, offset: int, size: int) -> bytes:
        handle = self._handles.get(shard)
        if handle is not None:
            return os.pread(handle, size, offset)
        handle = os.open(self._shards[shard], os.O_RDONLY | os.O_CLOEXEC)
        # Another thread may have opened it meanwhile.
        keep = len(self._handles) < self._most_handles and self._handles.setdefault(shard, handle) == handle
        try:
            return os.pread(handle, size, offset)
        finally:
            if not keep:
                os.close(handle)

    def written(self, path: str) -> None:
        """The program writes to it, or takes it away: from now on it is read from its own place."""
        number = self._numbers.get(self._key(path))
        if number is not None:
            self._known[number] = _OWN_PLACE

    def moved(self, path: str) -> None:
        """As `written`; where it is a folder, all that lies in it."""
        self.written(path)
        key = self._key(path)
        if key in self._folders:
            for each, number in self._numbers.items():
                if each.startswith(key + os.sep):
                    self._known[number] = _OWN_PLACE

    def _key(self, given: Any) -> str:
        """The path as the index has it: absolute, without `.` and `..`."""
        path = os.fsdecode(given)
        if path in self._numbers:
            return path
        return plain_path(path, self._real_folders)

    def _tell(self, fault: str) -> None:
        if not self._known[-1]:
            self._known[-1] = 1
            self._warn(f"{fault}: what it holds is read from the files themselves; `overdrive pack` again mends it")


def plain_path(path: str, known: dict[str, str] | None = None) -> str:
    """Absolute; `.` and `//` taken out by the letter, `..` by following links, as the system does."""
    absolute = os.path.join(os.getcwd(), path)
    if os.pardir not in absolute.split(os.sep):
        return os.path.normpath(absolute)
    folder, name = os.path.split(absolute)
    known = {} if known is None else known
    if folder not in known:  # 15 µs each otherwise
        known[folder] = os.path.realpath(folder)
    return os.path.join(known[folder], name)


def _parents(folder: str) -> list[str]:
    return [str(each) for each in Path(folder).parents]


class _Content(io.RawIOBase):
    """One opened file. Read from the shard at the first read; the real file where a handle is asked for."""

    mode = "rb"
    closefd = True

    def __init__(self, packed: Packed, number: int, given: Any) -> None:
        super().__init__()
        self.name = given
        self._packed = packed
        self._number = number
        path = os.fsdecode(given)
        # The working folder may be another one when the handle is asked for.
        self._path = path if path.startswith(os.sep) else os.path.join(os.getcwd(), path)
        self._content: bytes | None = None
        self._real: io.FileIO | None = None
        self._position = 0

    def readable(self) -> bool:
        self._check()
        return True

    def seekable(self) -> bool:
        self._check()
        return True

    def fileno(self) -> int:
        self._check()
        return self._file().fileno()

    def readinto(self, buffer: Any) -> int:
        content = self._loaded()
        if content is None:
            return self._file().readinto(buffer)
        view = memoryview(buffer).cast("B")
        part = content[self._position : self._position + len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def readall(self) -> bytes:
        content = self._loaded()
        if content is None:
            return self._file().readall()
        part = content[self._position :]
        self._position = max(self._position, len(content))
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        if self._real is not None:
            return self._real.seek(offset, whence)
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            return self._file().seek(offset, whence)
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._packed.size(self._number)}[whence]
        if start + offset < 0:
            return self._file().seek(offset, whence)  # refused in the system's own words
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        self._check()
        return self._position if self._real is None else self._real.tell()

    def close(self) -> None:
        self._content = None
        if self._real is not None:
            self._real.close()
        super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _loaded(self) -> bytes | None:
        """The whole content; None where it is the real file that is to be read."""
        self._check()
        if self._real is None and self._content is None:
            self._content = self._packed.content(self._number)
        return self._content if self._real is None else None

    def _file(self) -> io.FileIO:
        if self._real is None:
            self._real = io.FileIO(self._path)
            self._real.seek(self._position)
            self._content = None
        return self._real


class _Writes:
    """Tells packs what this process, or a forked one, does to their files through Python.

    An audit hook cannot be removed, so there is one a process, which looks at who listens.
    """

    _packs: tuple[Packed, ...] = ()
    _installed = False
    _WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    @classmethod
    def listen(cls, pack: Packed) -> None:
        if not cls._installed:
            sys.addaudithook(cls._hear)
            cls._installed = True
        cls._packs = (*cls._packs, pack)

    @classmethod
    def forget(cls, pack: Packed) -> None:
        cls._packs = tuple(each for each in cls._packs if each is not pack)

    @classmethod
    def _hear(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if not cls._packs or event not in ("open", "os.rename", "os.remove", "os.truncate"):
            return
        with contextlib.suppress(Exception):  # a path that is none; what the program does fails by itself
            cls._heard(event, arguments)

    @classmethod
    def _heard(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, (str, bytes, os.PathLike)) and flags & cls._WRITING:
                for pack in cls._packs:
                    pack.written(os.fsdecode(path))
        elif event == "os.truncate":
            if not isinstance(arguments[0], int):
                for pack in cls._packs:
                    pack.written(os.fsdecode(arguments[0]))
        else:
            pairs = (
                zip(arguments[::2], arguments[1::2], strict=True)
                if event == "os.remove"
                else ((arguments[0], arguments[2]), (arguments[1], arguments[3]))
            )
            for path, folder in pairs:
                place = _at(path, folder)
                for pack in cls._packs:
                    pack.moved(place)


def _at(path: Any, folder: int) -> str:
    """A path that is meant from a folder's handle on."""
    name = os.fsdecode(path)
    return name if folder < 0 else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
