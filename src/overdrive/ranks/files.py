"""Rank 0 changes files last: what other ranks find there is what the program has left, not what rank 0 did since.

Ranks above 0 see the user's files through their own copy of what they change. Of what they did not change they see
what rank 0 makes of it: a folder that it has just made would be in their way, a file that it removed would be missing,
and one that it has just begun to write would be taken for that of a run before.
"""

from __future__ import annotations

import builtins
import functools
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from overdrive.core.flag import Flag
from overdrive.core.in_place import InPlace
from overdrive.core.whose import OURS, is_ours, is_python
from overdrive.ranks.monitor import has_gone_on
from overdrive.ranks.writes import Writes
from overdrive.sandbox.patches import Patches

if TYPE_CHECKING:
    from overdrive.ranks.data import FilesRead
    from overdrive.ranks.group import Group

_CHANGES = ("mkdir", "remove", "unlink", "rmdir", "rename", "replace", "link", "symlink")
_NAME_ANEW = ("rename", "replace", "link", "symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_PATIENCE = 60.0  # seconds for a rank that lives and is late
_IN_VAIN = 5.0  # seconds in all for those that have gone on without this change, who then are not waited for again
_EVERY = 0.001
_BEATS_EVERY = 0.2  # seconds between looks at whether another rank has gone on
_CORE, *_OF_ONE_RANK = (os.path.join(OURS, room, "") for room in ("core", "survive", "machine"))


def _is_the_runs() -> bool:
    """Whether the change is the run's own, which one rank makes (snapshots, shared memory), and not the program's."""
    return _by().startswith(tuple(_OF_ONE_RANK))


def _is_ours() -> bool:
    return is_ours(_by())


def _by(depth: int = 4) -> str:
    """The file of code that makes a change: not Python's, nor our core, which do so for others."""
    frame: Any = sys._getframe(depth)
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


def _note_opened(read: FilesRead, file: Any = None, mode: Any = "r", *args: Any, **kwargs: Any) -> None:
    if _is_file(file) and isinstance(mode, str):
        (read.made if any(each in mode for each in "wax") else read.opened)(file)


def _note_opened_by_flags(read: FilesRead, path: Any = None, flags: Any = 0, *args: Any, **kwargs: Any) -> None:
    if _is_file(path) and isinstance(flags, int):
        (read.made if flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC) else read.opened)(path)


def _note_second(read: FilesRead, first: Any = None, second: Any = None, *args: Any, **kwargs: Any) -> None:
    """Of two paths, or of what is saved and its path."""
    if _is_file(second):
        read.made(second)


class FileOrder:
    """In this process, for good. Attributes: `writes`: what rank 0 is in the middle of.

    A change is known by how many come before it since the exchange before it: who has come to the next exchange makes
    it no more. What one rank changes alone so puts no later change out of step.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        group: Callable[[], Group | None],
        say: Callable[[str], None],
        read: FilesRead | None = None,
    ) -> None:
        """
        Args:
            group: gives none as long as the ranks have not met.
            say: tells people a sentence.
            read: is to hear what the program opens.
        """
        self._read = read
        self._rank, self._size, self._group, self._say = rank, size, group, say
        self._change = (0, 0)  # number of the exchange before, and of the change since then
        self.writes = Writes()
        self._waits = True
        self._in_vain = 0.0  # seconds
        self._within = Flag()
        with suppress(OSError):
            tempfile.gettempdir()  # it tries folders by writing to them, once in a process: not on all ranks together
        patches = Patches()
        for name in _CHANGES:
            noted = _note_second if name in _NAME_ANEW else None
            patches.set_os(name, self._ordered(getattr(os, name), lambda *_, **__: not _is_the_runs(), noted))
        patches.set_os("open", self._ordered(os.open, _opens_by_flags, _note_opened_by_flags))
        opening = InPlace(builtins.open, self._ordered(builtins.open, _opens, _note_opened))
        patches.set(builtins, "open", opening)
        patches.set(io, "open", opening)

    def follow(self, torch: Any) -> None:
        """PyTorch opens past Python what it saves to."""
        torch.save = self._ordered(torch.save, _saves, _note_second)

    def uncounted(self) -> Flag:
        """Changes within are made at once, by as many ranks as come to them."""
        return self._within

    def _ordered(
        self, plain: Callable[..., Any], changes: Callable[..., bool], noted: Callable[..., None] | None = None
    ) -> Callable[..., Any]:
        """
        Args:
            changes: whether a call of it, with these arguments, changes the program's files.
            noted: tells who wants to hear of them which file it opens or makes.
        """
        read = self._read

        @functools.wraps(plain)
        def change(*args: Any, **kwargs: Any) -> Any:
            if read is not None and read.notes and noted is not None and not is_ours(_by(2)):
                noted(read, *args, **kwargs)
            group = self._group() if not self._within and changes(*args, **kwargs) else None
            if group is None or not group.mine():
                return plain(*args, **kwargs)
            number = group.monitor.number
            self._change = (number, self._change[1] + 1 if self._change[0] == number else 1)
            try:
                with self._within:
                    if self._rank == 0:
                        with suppress(RuntimeError):
                            self._wait_for_others(group)
                        with self.writes.making(group.monitor) as made:
                            made.append(plain(*args, **kwargs))
                        return made[0]
                    return plain(*args, **kwargs)
            finally:
                if self._rank:
                    self._tell(group)

        return change

    def _tell(self, group: Group) -> None:
        with suppress(RuntimeError):  # of the store: who had it is gone; what the program does with its file stands
            group.store.set(f"files/{self._rank}", json.dumps(self._change))

    def _wait_for_others(self, group: Group) -> None:
        began = looked = time.monotonic()
        late, alone = set(range(1, self._size)) if self._waits else set(), False
        while late := {each for each in late if not self._has_come(group, each)}:
            time.sleep(_EVERY)
            if (now := time.monotonic()) < looked + _BEATS_EVERY:
                continue
            looked = now
            gone_on = {each for each in late if has_gone_on(group.store, each, self._change[0])}
            alone = alone or any(not self._has_come(group, each) for each in gone_on)
            late -= gone_on
            if late and now > began + _PATIENCE:
                return self._leave_off(f"rank {min(late)} has not come to a change of files in {_PATIENCE:.0f} s")
        self._in_vain += (looked - began) * alone
        if self._in_vain > _IN_VAIN:
            self._leave_off("rank 0 changes files that other ranks leave as they are")

    def _has_come(self, group: Group, other: int) -> bool:
        key = f"files/{other}"
        return group.store.check([key]) and tuple(json.loads(group.store.get(key))) >= self._change

    def _leave_off(self, why: str) -> None:
        self._waits = False
        self._say(f"{why}: it waits for them no more before it changes some")
