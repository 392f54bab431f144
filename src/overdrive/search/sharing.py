"""Processes that are at one search: who lives, who may write, and which of them does what is done once.

All by locks on files beside the journal (flock, which NFS 4, Lustre and GPFS have, too): the system lets them go with
the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MODE = 0o600


class Sharing:
    """This process's part in it. `name` tells it from all others."""

    def __init__(self, journal: Path) -> None:
        """
        Raises:
            OSError: nothing can be written there, or the file system has no locks.
        """
        self._folder = journal.with_name(f"{journal.name}.processes")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name = uuid.uuid4().hex
        self.writing = Writing(self._folder / "writing")
        with self.writing:  # no other one looks before it is locked
            self._life = _opened(self._folder / self.name)
            fcntl.flock(self._life, fcntl.LOCK_EX)

    def alone(self) -> bool:
        """Whether no other process is at this search. For who holds `writing`."""
        others = [each.name for each in self._folder.iterdir() if each.name != self.name and len(each.name) == 32]
        return not any(self.lives(name) for name in others)

    def lives(self, name: str) -> bool:
        """Whether the process of this name still is. What a dead one left is cleared away."""
        if name == self.name:
            return True
        try:
            handle = os.open(self._folder / name, os.O_RDWR)
        except OSError:
            return False
        try:
            if not _taken(handle):
                return True
        finally:
            os.close(handle)
        with suppress(OSError):
            os.unlink(self._folder / name)
        return False

    @contextmanager
    def turn(self, what: str, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """For this process only, meanwhile. `waits`: called where it has to wait for another one."""
        with self._held(what) as (handle, mine):
            if not mine:
                waits()
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @contextmanager
    def claim(self, what: str) -> Iterator[bool]:
        """As `turn`, but false where another process is at it."""
        with self._held(what) as (_, mine):
            yield mine

    @contextmanager
    def _held(self, what: str) -> Iterator[tuple[int, bool]]:
        handle = _opened(self._folder / what)
        try:
            yield handle, _taken(handle)
        finally:
            os.close(handle)

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self._folder / self.name)
        os.close(self._life)
        self.writing.close()


class Writing:
    """A lock in the form that Optuna's journal takes; what holds it may take it again.

    Optuna's own are links, which outlive a killed process: the next one would wait 30 s for each.
    """

    def __init__(self, path: Path) -> None:
        self._handle = _opened(path)
        self._depth = 0

    def acquire(self) -> bool:
        if not self._depth:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def close(self) -> None:
        os.close(self._handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
