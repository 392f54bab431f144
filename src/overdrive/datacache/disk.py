"""Files of tables: mapped into memory, checksummed, locked, with their blocks allocated beforehand."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.datacache.table import Bytes
from overdrive.machine.storage import mount_of

PARTIAL = "partial-"
# zlib.crc32 sums 2 GB/s on each core and lets other threads run meanwhile; in parts of this size.
_PART = 8 << 20


def close_with(owner: object, file: int) -> None:
    """Close it as its owner goes."""
    weakref.finalize(owner, _close, file)


def _close(file: int) -> None:
    with contextlib.suppress(OSError):
        os.close(file)


def new_place(folder: Path) -> Path:
    """A name that nobody else takes."""
    return folder / f"{PARTIAL}{os.getpid()}-{os.urandom(6).hex()}"


def new_file(path: Path, size: int) -> Bytes:
    """A file of this size that is mapped for writing. Its blocks are taken now: a full disk met later, while
    writing to mapped memory, would end the process with SIGBUS."""
    with open(path, "x+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)


def mapped(path: Path, count: int, size: int, writable: bool = False) -> Bytes:
    """A file of `count` rows of `size` bytes, to be read, or written to as well.

    Raises:
        ValueError: it has another size.
    """
    with open(path, "r+b" if writable else "rb") as file:
        if count * size < 1 or os.fstat(file.fileno()).st_size != count * size:
            raise ValueError(f"{path} has another size than {count} times {size}")
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        found = mmap.mmap(file.fileno(), count * size, access=access)
        return np.frombuffer(found, dtype=np.uint8).reshape(count, size)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock; OSError where another process holds it, or has not made it yet."""
    try:
        lock = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        if time.time() - path.parent.stat().st_mtime < 3600:
            raise
        yield
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def sums(data: Bytes, threads: int = 0, given_up: Callable[[], bool] = lambda: False) -> list[int]:
    """crc32 of each part; 600 MB took 0.17 s on two cores. `threads`: 0 is one a core, and at most 8.

    `given_up`: whether nobody wants them any more; what comes then means nothing. Python waits for these threads at its
    end, whatever is still to be read.
    """
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    with ThreadPoolExecutor(min(8, threads or os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda part: 0 if given_up() else zlib.crc32(part), parts))


def read_note(path: Path) -> Any:
    """What a note beside a table says; None where there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        note = json.loads(path.read_text())
        if zlib.crc32(note["text"].encode()) == note["sum"]:
            return json.loads(note["text"])
    return None


def lies_in_memory(folder: Path) -> bool:
    """Whether the folder's file system lies in memory, so that files there are no relief for it."""
    mount = mount_of(str(folder))
    return mount is not None and mount["type"] in ("tmpfs", "ramfs", "devtmpfs")


def used_at(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def size_of(place: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in place.iterdir())
    return 0
