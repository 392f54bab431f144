"""What ranks above 0 print: into a file, whose place is told when something fails."""

from __future__ import annotations

import atexit
import errno
import fcntl
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from overdrive.core import scratch
from overdrive.core.streams import flush
from overdrive.ranks.membership import LOGS, Membership

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class _Log(io.FileIO):
    """What cannot be written for want of room is lost. `tell`: called with each such error."""

    def __init__(self, number: int, tell: Callable[[OSError], None]) -> None:
        super().__init__(number, "w", closefd=False)
        self._tell = tell

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._tell(error)
            return memoryview(data).nbytes


def _error_output() -> int | None:
    """Another number for the real one, above those of the standard streams; None where that is closed."""
    try:
        return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


class RankOutput:
    """
    Attributes:
        log: where it goes; None for rank 0.
        told: people were told of that place.
        scratch: an empty folder for what this rank writes, which is thrown away; None for rank 0.
    """

    def __init__(self, membership: Membership, apart: bool) -> None:
        """`apart`: whether that of ranks above 0 is kept apart; in a trial, all that is printed goes to one file."""
        self._real, self._process, self._rank = _error_output(), os.getpid(), membership.rank
        self._lost = False  # some of what was printed
        self.log: Path | None = None
        self.told = False
        self.scratch: Path | None = None
        if membership.rank and apart:
            if LOGS in os.environ:
                folder = Path(os.environ[LOGS])
                scratch.hold(folder)
            else:  # a launcher did, once for all of a job
                scratch.sweep()
                folder = scratch.made("overdrive-ranks-")
            self.scratch = folder / f"scratch{membership.rank}"
            self.scratch.mkdir(mode=0o700)
            if LOGS not in os.environ:  # else who started us sees to it
                atexit.register(self._discard)
            self.log = folder / f"rank{membership.rank}.log"
            handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            flush()
            for number in (1, 2):
                if number != handle:  # it is where that one was closed
                    os.dup2(handle, number)
            if handle > 2:
                os.close(handle)
            sys.stdout = sys.__stdout__ = self._forgiving(sys.stdout, 1)  # type: ignore[misc]
            sys.stderr = sys.__stderr__ = self._forgiving(sys.stderr, 2)  # type: ignore[misc]
        os.environ.pop(LOGS, None)

    def _forgiving(self, stream: TextIO | None, number: int) -> io.TextIOWrapper | None:
        """The same, but that a full disk is no error of the program's, which needs nothing of what is written there.
        None as in one process: of an output that was closed (`>&-`)."""
        if stream is None:
            return None
        log, at_once = _Log(number, self._not_kept), bool(getattr(stream, "write_through", False))  # `python -u`
        return io.TextIOWrapper(
            log if at_once else io.BufferedWriter(log),
            stream.encoding,
            stream.errors,
            line_buffering=number == 2,
            write_through=at_once,
        )

    def _not_kept(self, error: OSError) -> None:
        if not self._lost:
            self._lost = True
            self.say(f"rank {self._rank} prints what is not kept any more, in {self.log}: {error.strerror}")

    def _discard(self) -> None:
        """At this process's end: what nobody was told of."""
        if self.scratch is None or os.getpid() != self._process:  # a fork of the program's that comes to its own end
            return
        stacks = any(each.stat().st_size for each in self.scratch.parent.glob("*.stacks.log"))
        if self.told or stacks:
            self.keep()
            scratch.discard(self.scratch)
        else:
            scratch.discard(self.scratch.parent)

    def keep(self) -> None:
        """People are told of its place: it stays."""
        self.told = True
        if self.log is not None:
            scratch.keep(self.log.parent)

    def tell(self, text: str) -> None:
        """On the real standard error, whatever the rank."""
        flush()
        if self._real is not None:
            os.write(self._real, text.encode(errors="replace"))

    def say(self, sentence: str) -> None:
        self.tell(f"overdrive: {sentence}\n")
