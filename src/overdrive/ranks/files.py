"""Rank 0 changes files last: what other ranks find there is what the program has left, not what rank 0 did since.

Ranks above 0 see the user's files through their own copy of what they change. Of what they did not change they see
what rank 0 makes of it: a folder that it has just made would be in their way, a file that it removed would be missing,
and one that it has just begun to write would be taken for that of a run before.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from overdrive.core.whose import OURS, is_ours, is_python
from overdrive.sandbox.patches import Patches

if TYPE_CHECKING:
    from overdrive.ranks.group import Group

_CHANGES = ("mkdir", "remove", "unlink", "rmdir", "rename", "replace", "link", "symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_PATIENCE = 5.0  # seconds; who does not come does other things with its files, and is not waited for again
_EVERY = 0.001
_CORE, *_OF_ONE_RANK = (os.path.join(OURS, room, "") for room in ("core", "survive", "machine"))


def _is_the_runs() -> bool:
    """Whether the change is the run's own, which one rank makes (snapshots, shared memory), and not the program's."""
    return _by().startswith(tuple(_OF_ONE_RANK))


def _is_ours() -> bool:
    return is_ours(_by())


def _by() -> str:
    """The file of code that makes a change: not Python's, nor our core, which do so for others."""
    frame: Any = sys._getframe(4)
    while frame is not None and (is_python(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_CORE)):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _is_file(path: Any) -> bool:
    """Whether it is a path of one; an open file has none, and what is no path is for who is called to say."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    return isinstance(path, (str, bytes)) and not os.fsdecode(path).startswith(_NO_FILES)


def _opens(file: Any = None, mode: Any = "r", *args: Any, **kwargs: Any) -> bool:
    return isinstance(mode, str) and any(each in mode for each in "wax+") and _is_file(file) and not _is_ours()


def _opens_by_flags(path: Any = None, flags: Any = 0, *args: Any, **kwargs: Any) -> bool:
    return isinstance(flags, int) and bool(flags & _WRITES) and _is_file(path) and not _is_ours()


def _saves(obj: Any = None, f: Any = None, *args: Any, **kwargs: Any) -> bool:
    return _is_file(f) and not _is_ours()


class FileOrder:
    """In this process, for good. `group`: gives none as long as the ranks have not met."""

    def __init__(self, rank: int, size: int, group: Callable[[], Group | None]) -> None:
        self._rank, self._size, self._group = rank, size, group
        self._changes = 0
        self._waits = True
        self._within = False
        with suppress(OSError):
            tempfile.gettempdir()  # it tries folders by writing to them, once in a process: not on all ranks together
        patches = Patches()
        for name in _CHANGES:
            patches.set_os(name, self._ordered(getattr(os, name), lambda *_, **__: not _is_the_runs()))
        patches.set_os("open", self._ordered(os.open, _opens_by_flags))
        opening = self._ordered(builtins.open, _opens)
        patches.set(builtins, "open", opening)
        patches.set(io, "open", opening)

    def follow(self, torch: Any) -> None:
        """PyTorch opens past Python what it saves to."""
        torch.save = self._ordered(torch.save, _saves)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Changes within are made at once, by as many ranks as come to them."""
        before, self._within = self._within, True
        try:
            yield
        finally:
            self._within = before

    def _ordered(self, plain: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        """Args: `changes`: whether a call of it, with these arguments, changes the program's files."""

        @functools.wraps(plain)
        def change(*args: Any, **kwargs: Any) -> Any:
            group = self._group() if not self._within and changes(*args, **kwargs) else None
            if group is None or not group.mine():
                return plain(*args, **kwargs)
            self._within = True
            self._changes += 1
            try:
                if self._rank == 0:
                    with suppress(RuntimeError):
                        self._wait_for_others(group)
                return plain(*args, **kwargs)
            finally:
                self._within = False
                if self._rank:
                    self._tell(group)

        return change

    def _tell(self, group: Group) -> None:
        with suppress(RuntimeError):  # of the store: who had it is gone; what the program does with its file stands
            group.store.set(f"files/{self._rank}", str(self._changes))

    def _wait_for_others(self, group: Group) -> None:
        until = time.monotonic() + _PATIENCE
        others = set(range(1, self._size)) if self._waits else set()
        while others:
            for other in tuple(others):
                key = f"files/{other}"
                if group.store.check([key]) and int(group.store.get(key)) >= self._changes:
                    others.discard(other)
            if others and time.monotonic() > until:
                self._waits = False
                return
            time.sleep(_EVERY if others else 0)
