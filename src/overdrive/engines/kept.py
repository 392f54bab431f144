"""Engines kept on disk between runs, as data: a graph and its weights, in the library's own format. Never code.

A file for each key, in a folder of the user's own. It begins with a checksum of all that follows, says itself under
which key it was written, and is renamed into its place when it is whole. One that is damaged, of another version, under
another's name or in another user's hands is none: the engine is built, as if there had been no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from overdrive.core.atomic_file import write_atomically
from overdrive.core.places import engines_folder

_FORMAT = 3  # of the file; also to be raised where other engines come of the same model
_MAGIC = b"overdrive engine\n"
_SUFFIX = ".engine"
_SUM = hashlib.sha256().digest_size
_SHARE_OF_FREE_DISK = 0.1
_ABANDONED = 3600.0  # seconds after which nobody writes to a file any more
_LONGEST_HEAD = 1 << 16

Parts = Mapping[str, bytes]  # of one engine, by name


class KeptEngines:
    """Those of one user."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: another one than the user's own; it need not be there."""
        self._folder = folder or engines_folder()

    def take(self, key: str) -> Parts | None:
        """What was kept under this key; None where that is nothing, or not what was written there."""
        path = self._path(key)
        try:
            if not _is_own(os.stat(self._folder)):
                return None
            content = _read(path)
        except OSError:
            return None
        parts = _parsed(content, key)
        if parts is None:
            self.remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used go first
        return parts

    def keep(self, key: str, parts: Parts) -> bool:
        """Write it down, where there is room for it; whether that was done."""
        content = _written(key, parts)
        size = sum(map(len, content))
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_own(os.stat(self._folder)):
                return False
            if not self._make_room(size, self._path(key)):
                return False
            self.remove(key)  # a link would be followed
            write_atomically(self._path(key), content)
        except OSError:
            return False
        return True

    def remove(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _make_room(self, size: int, path: Path) -> bool:
        """Whether there is room, once the longest unused have gone for it."""
        files = sorted(self._files(), key=lambda each: each[1].st_mtime)
        used = sum(status.st_size for _, status in files)
        allowed = _SHARE_OF_FREE_DISK * (shutil.disk_usage(self._folder).free + used)
        if size > allowed:
            return False
        for each, status in files:
            if used + size <= allowed:
                break
            if each != path:
                each.unlink(missing_ok=True)
            used -= status.st_size
        return True

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """All engines; what a process that died left half written is removed."""
        for each in self._folder.iterdir():
            with contextlib.suppress(OSError):
                status = os.lstat(each)
                if each.name.endswith(_SUFFIX):
                    yield each, status
                elif each.name.endswith(".tmp") and time.time() - status.st_mtime > _ABANDONED:
                    each.unlink()


def _is_own(status: os.stat_result) -> bool:
    """Whether it is this user's, and nobody else may write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _read(path: Path) -> memoryview:
    """
    Raises:
        OSError: it is not there, no plain file, or not this user's alone.
    """
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or not _is_own(status):
            raise PermissionError(f"{path} is no file of this user's alone")
        with open(number, "rb", closefd=False) as file:
            return memoryview(file.read())
    finally:
        os.close(number)


def _written(key: str, parts: Parts) -> Sequence[bytes]:
    sizes = [[name, len(part)] for name, part in parts.items()]
    head = json.dumps({"format": _FORMAT, "key": key, "parts": sizes}).encode() + b"\n"
    digest = hashlib.sha256(head)
    for part in parts.values():
        digest.update(part)
    return [_MAGIC, digest.digest(), head, *parts.values()]


def _parsed(content: memoryview, key: str) -> Parts | None:
    start = len(_MAGIC) + _SUM
    if bytes(content[: len(_MAGIC)]) != _MAGIC or len(content) < start:
        return None
    if hashlib.sha256(content[start:]).digest() != content[len(_MAGIC) : start]:
        return None
    line = bytes(content[start : start + _LONGEST_HEAD]).partition(b"\n")[0]
    try:
        head = json.loads(line)
        if head["format"] != _FORMAT or head["key"] != key:
            return None
        sizes = [(str(name), int(size)) for name, size in head["parts"]]
    except (ValueError, KeyError, TypeError):
        return None
    found, place = {}, start + len(line) + 1
    for name, size in sizes:
        found[name] = bytes(content[place : place + size])
        place += size
    return found if place == len(content) else None
