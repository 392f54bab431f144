"""Keeps forked copies of a program from doing what the program itself is going to do: write, send, start, delete."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import os
import stat
import sys
import threading
import warnings
from collections.abc import Collection, Iterator
from itertools import compress
from typing import Any

from overdrive.core.streams import flush
from overdrive.forks.layout import Unfit
from overdrive.sandbox.redirected_files import WRITING

_DOES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
_TALKS = ("socket.connect", "socket.bind", "socket.sendto", "os.system", "os.exec", "os.posix_spawn", "os.fork")
_EVENTS = {
    **dict.fromkeys((*_DOES, "shutil.rmtree"), "changes files"),
    **dict.fromkeys(_TALKS, "talks to other processes or machines"),
    "subprocess.Popen": "starts other programs",
}


class SideEffects:
    """Side effects that this process tried and was kept from. For a forked process that ends soon: an audit
    hook cannot be taken away."""

    def __init__(self) -> None:
        self._tried = ""  # the first that was stopped
        self._said = 0
        self.paused = False
        self.thread: int | None = None  # the only one that is looked at; others are the process's own

    def stop(self, thorough: bool = True) -> None:
        """Raise PermissionError in the place of each effect from now on.

        Args:
            thorough: what only comes into the buffer of a file that the program has open is seen, too. To look for
                these files takes 100 ms, and a copy of all memory that Python's objects lie in.
        """
        if thorough and _turned:
            _writers[:] = _buffers_before(_turned)
        self._said = _said_so_far()
        sys.addaudithook(self._hook)

    @property
    def tried(self) -> str:
        """What a fetch does besides reading, in words; nothing if that is all it does."""
        if not self._tried and _said_so_far() > self._said:
            return "prints, or writes to a file that is open"
        return self._tried

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.paused or self.thread not in (None, threading.get_ident()):
            return
        effect = effect_of(event, arguments)
        if effect:
            self._tried = self._tried or effect
            raise PermissionError(f"{event} is left to the program itself")


def effect_of(event: str, arguments: tuple[object, ...]) -> str:
    """What an audit event does besides reading, in words; nothing if that is all it does."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & WRITING or path == os.devnull:
            return ""
        if isinstance(path, int):  # a descriptor: it was opened before
            return ""
        ours = "__pycache__" in str(path) or str(path).startswith("/proc/self/fd/")  # a table's
        return "" if ours else "opens a file for writing"
    if event not in _EVENTS:
        return ""
    # Compiled code of modules that a fetch imports is written by Python itself: a new file, then renamed.
    return "" if arguments and "__pycache__" in str(arguments[0]) else _EVENTS[event]


@contextlib.contextmanager
def only_reading(thorough: bool = True) -> Iterator[None]:
    """For what fetches samples in a forked process; effects are stopped until that ends. A decorator, too.

    Args:
        thorough: see `SideEffects.stop`.

    Raises:
        Unfit: it did more than read, whatever came of that.
    """
    global _stopped
    effects = _stopped = SideEffects()
    effects.stop(thorough)
    try:
        yield
    except Exception:
        if not effects.tried:
            raise
    stop_where_done()


def stop_where_done() -> None:
    """
    Raises:
        Unfit: what is done in `only_reading` did more than that.
    """
    if _stopped is not None and _stopped.tried:
        raise Unfit(f"fetching a sample does more than read: it {_stopped.tried}")


_stopped: SideEffects | None = None


def keep_output() -> None:
    """In a forked process: what is written to its output goes to a file in memory instead."""
    global _said
    _said = os.memfd_create("overdrive")
    flush()
    os.dup2(_said, 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)


# Where everything goes that this forked process writes to what the program had open, which of its descriptors lead
# there besides its output, and who wrote to them.
_said: int | None = None
_turned: set[int] = set()
_writers: list[Any] = []


def cut_off(keep: Collection[int]) -> None:
    """In a forked process: nothing that the program has open can be written to from here, but these descriptors.

    What is written to its output or its files (a log, say) goes to a file in memory instead; what is written to its
    error output, where decoders complain of single pictures, goes nowhere. Its connections are closed here, as
    two processes cannot share one.
    """
    global _said
    _said = os.memfd_create("overdrive")
    nowhere = os.open(os.devnull, os.O_RDWR)
    _turned.clear()
    for number in _open_descriptors():
        if number in keep or number in (_said, nowhere):
            continue
        with contextlib.suppress(OSError):
            mode, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
            if number in (0, 2) or stat.S_ISSOCK(mode):
                os.dup2(nowhere, number)
            elif number == 1 or _is_written(mode, flags):
                os.dup2(_said, number)
                if number != 1:
                    _turned.add(number)
    for stream in (sys.stdout, sys.__stdout__):
        if type(stream) is io.TextIOWrapper:
            stream.flush()  # what the program had written; who empties it later has not written it
    # Notebooks and tests have others in the place of these, which send what is written to the program's process.
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    warnings.showwarning = _show_nothing


def _show_nothing(*_: object, **__: object) -> None:
    pass


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return [0, 1, 2]


def _is_written(mode: int, flags: int) -> bool:
    """Files and pipes that are open for writing only: others may have to be read from."""
    return flags & os.O_ACCMODE == os.O_WRONLY and (stat.S_ISREG(mode) or stat.S_ISFIFO(mode))


def _buffers_before(descriptors: set[int]) -> list[Any]:
    """Python's files that write to these."""
    found = []
    collects = gc.isenabled()
    gc.disable()  # an iterator of the parent's that is collected here would stop the parent's workers
    gc.unfreeze()  # what is frozen would not be found
    things = gc.get_objects()
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, (io.TextIOWrapper, io.BufferedWriter))}
    for file in compress(things, map(kinds.__contains__, map(type, things))):
        with contextlib.suppress(Exception):
            if file.fileno() in descriptors:
                found.append(file)
    del things
    gc.freeze()
    if collects:
        gc.enable()
    return found


def _said_so_far() -> int:
    """Bytes that were written to what the program has open."""
    if _said is None:
        return 0
    for stream in (sys.stdout, *_writers):
        with contextlib.suppress(Exception):
            stream.flush()
    return os.fstat(_said).st_size
