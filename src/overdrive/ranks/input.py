"""Standard input of ranks: each has all of it, as one process would.

A file each rank opens for itself. What comes through a pipe the process that starts them keeps, in a file without a
name, and hands it on through a pipe of each rank's own, no faster than one of them takes it. A terminal is nobody's: of
several who read it each would have some of the lines.
"""

from __future__ import annotations

import os
import select
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_STDIN = 0
_PIECE = 1 << 16  # bytes


@contextmanager
def handed_on(folder: Path, ranks: int) -> Iterator[None]:
    """Meanwhile so many ranks find theirs in that folder, from its beginning, though they are started again."""
    if not _is_a_pipe():
        yield
        return
    names = [_name(folder, rank) for rank in range(ranks)]
    ends: list[int] = []
    for each in names:
        os.mkfifo(each, 0o600)
        ends.append(os.open(each, os.O_RDONLY | os.O_NONBLOCK))  # what is in it stays there until its rank has come
    pipes = [os.open(each, os.O_WRONLY | os.O_NONBLOCK) for each in names]
    over, tell = os.pipe()
    thread = threading.Thread(target=_kept().hand_on, args=(pipes, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(tell)
        thread.join()
        for end in (over, *ends):
            os.close(end)
        for each in names:
            each.unlink(missing_ok=True)


def take_own(folder: str | None, rank: int) -> None:
    """In this rank, before anything is read."""
    place = _name(Path(folder), rank) if folder else None
    with suppress(OSError):
        if place and place.exists():
            own = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for who may have written all of it
            os.set_blocking(own, True)
        elif stat.S_ISREG(os.fstat(_STDIN).st_mode):
            own = os.open(f"/proc/self/fd/{_STDIN}", os.O_RDONLY)
            os.lseek(own, os.lseek(_STDIN, 0, os.SEEK_CUR), os.SEEK_SET)
        elif os.isatty(_STDIN):
            own = os.open(os.devnull, os.O_RDONLY)
        else:
            return
        os.dup2(own, _STDIN)
        os.close(own)


class _Kept:
    """What this process has read so far."""

    def __init__(self) -> None:
        self._file, self._size = tempfile.TemporaryFile(), 0  # noqa: SIM115
        self._more = True

    def hand_on(self, pipes: Sequence[int], over: int) -> None:
        """Until `over` is closed at its other end."""
        places = dict.fromkeys(pipes, 0)
        try:
            while over not in (ready := self._hand_on_some(places, over)):
                if ready:
                    self._read()
        finally:
            for each in places:
                os.close(each)

    def _hand_on_some(self, places: dict[int, int], over: int) -> list[int]:
        """To those that can take it. Returns what there is to be read."""
        behind = [each for each, place in places.items() if place < self._size]
        if not self._more:
            for each in places.keys() - {*behind}:
                os.close(each)
                del places[each]
        hungry = self._more and len(behind) < len(places)
        ready, able, _ = select.select([over, *([_STDIN] if hungry else [])], behind, [])
        for each in able:
            with suppress(BlockingIOError):
                places[each] += os.write(each, os.pread(self._file.fileno(), _PIECE, places[each]))
        return ready

    def _read(self) -> None:
        try:
            piece = os.read(_STDIN, _PIECE)
        except OSError:
            piece = b""
        self._more = bool(piece)
        self._size += os.pwrite(self._file.fileno(), piece, self._size)


_kept = cache(_Kept)


def _name(folder: Path, rank: int) -> Path:
    return folder / f"input{rank}"


def _is_a_pipe() -> bool:
    """Or a socket."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
