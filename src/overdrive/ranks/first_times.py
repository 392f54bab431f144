"""The times that the program's own lines read are rank 0's: a run that stops by the clock stops everywhere at one step.

No exchange, in which all meet: a program may read the clock while it waits for a file, in a `finally`, or as a signal
comes, on one rank more often than on another. Rank 0 tells what it reads and goes on. The others look for that: the how
manieth time that a line reads since the exchange before. Who finds that rank 0 has gone on without it takes its own.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overdrive.core.whose import is_library_file
from overdrive.ranks.monitor import has_gone_on
from overdrive.seams import clocks

if TYPE_CHECKING:
    from overdrive.ranks.group import Group
    from overdrive.seams.clocks import Read

_MOST = 10_000  # times that a line reads between two exchanges: one that spins goes by each rank's own clock then
_PATIENCE = 60.0  # seconds for a rank 0 that lives and is late
_IN_VAIN = 5.0  # seconds in all for what rank 0 does not read; then all is this rank's own
_EVERY = 0.0001  # seconds between looks for it,
_LATER_EVERY = 0.005  # and where it is long in coming
_BEATS_EVERY = 0.2  # seconds between looks at whether rank 0 has gone on


class FirstTimes:
    """
    Args:
        rank: of this process.
        group: gives none as long as ranks have not met.
        alone: whether this rank goes by its own now.
        before: the file by which ranks of one machine tell each other times before they meet; None where they have met
            at the start.
        say: tells something of this rank.
    """

    def __init__(
        self,
        rank: int,
        group: Callable[[], Group | None],
        alone: Callable[[], bool],
        before: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._rank, self._group, self._alone, self._say = rank, group, alone, say
        self._before = None if before is None else _File(before, rank)
        self._process = os.getpid()
        self._number = 0  # of the exchange before
        self._reads: Counter[str] = Counter()  # of each line, since then
        self._told: set[str] = set()  # keys that the store has
        self._goes, self._in_vain = True, 0.0

    def answer(self) -> None:
        """For all that the program reads from here on; for good."""
        clocks.tell(self.around(lambda plain, noted: noted()))
        plain = uuid.uuid1

        @functools.wraps(plain)
        def uuid1(*args: Any, **kwargs: Any) -> uuid.UUID:
            own = plain(*args, **kwargs)
            return uuid.UUID(self._of_first(_line(sys._getframe(1)), str(own)))

        uuid.uuid1 = uuid1

    def around(self, read: Read) -> Read:
        def first(plain: Callable[[], Any], noted: Callable[[], Any]) -> Any:
            own, frame = read(plain, noted), sys._getframe(1)
            while frame.f_code.co_filename == clocks.__file__ and frame.f_back is not None:
                frame = frame.f_back
            return self._of_first(_line(frame), own)

        return first

    def met(self) -> None:
        """The ranks meet now."""
        if self._before is not None:
            self._before.close()
            self._before = None

    def over(self) -> None:
        """The program is."""
        self.met()
        self._goes = False

    def _of_first(self, line: str, own: Any) -> Any:
        """Rank 0's in place of this rank's own, or that."""
        in_main = os.getpid() == self._process and threading.current_thread() is threading.main_thread()
        if not (line and self._goes and in_main):
            return own
        if self._before is not None and self._group() is None:
            key = self._key(line, 0)
            return self._before.of_first(key, own) if key else own
        if self._alone() or (group := self._group()) is None or not (key := self._key(line, group.monitor.number)):
            return own
        with suppress(RuntimeError):  # of the store: who had it is gone, which the monitor tells
            if self._rank:
                return self._awaited(group, key, own)
            group.store.set(key, json.dumps([self._number, own]))
        return own

    def _key(self, line: str, number: int) -> str:
        """What the keys stood for before the exchange is of no use any more: there are no more than a program has
        lines. "" where there are too many."""
        if number != self._number:
            self._number = number
            self._reads.clear()
        self._reads[line] += 1
        return f"time/{line}/{self._reads[line]}" if self._reads[line] <= _MOST else ""

    def _awaited(self, group: Group, key: str, own: Any) -> Any:
        began = looked = time.monotonic()
        gone_on = False
        while True:
            number, value = self._found(group, key)
            if number >= self._number:
                group.waited += time.monotonic() - began
                return value if number == self._number else own
            if gone_on:
                break
            time.sleep(_EVERY if looked == began else _LATER_EVERY)
            if (now := time.monotonic()) > looked + _BEATS_EVERY:
                looked = now
                # What it has told before that is looked for once more.
                gone_on = has_gone_on(group.store, 0, self._number) or now > began + _PATIENCE
        self._in_vain += looked - began
        if self._in_vain > _IN_VAIN:
            self._goes = False
            self._say("reads the time where rank 0 does not: it goes by its own clock from here")
        return own

    def _found(self, group: Group, key: str) -> tuple[int, Any]:
        """After how many exchanges rank 0 has told it, -1 for never; and what."""
        if key not in self._told and not group.store.check([key]):
            return -1, None
        self._told.add(key)  # that it is there is asked once
        number, value = json.loads(group.store.get(key))
        return number, value


class _File:
    """Rank 0 writes into it, a line each."""

    def __init__(self, path: Path, rank: int) -> None:
        self._rank, self._known = rank, dict[str, Any]()
        flags = os.O_RDONLY if rank else os.O_WRONLY | os.O_APPEND
        self._number = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rest, self._over = b"", False

    def of_first(self, key: str, own: Any) -> Any:
        if not self._rank:
            self._write(json.dumps([key, own]))
            return own
        until = time.monotonic() + _PATIENCE
        while key not in self._known and not self._over:
            if not self._read():
                time.sleep(_LATER_EVERY)
                self._over = time.monotonic() > until  # rank 0 has no room for it, say
        return self._known.get(key, own)

    def _read(self) -> bytes:
        data = os.read(self._number, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._over |= b"" in lines
        self._known.update(json.loads(line) for line in lines if line)
        return data

    def close(self) -> None:
        """Rank 0 tells nothing more in this way."""
        if not self._rank:
            self._write("")
        os.close(self._number)

    def _write(self, line: str) -> None:
        with suppress(OSError):  # a full disk is no matter of the program's
            os.write(self._number, line.encode() + b"\n")


def _line(frame: Any) -> str:
    """The line of the program's that is at work there; "" where it is a library's."""
    file = frame.f_code.co_filename
    return "" if is_library_file(file) else f"{os.path.basename(file)}:{frame.f_lineno}"
