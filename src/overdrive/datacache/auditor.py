"""Makes samples again in a forked process, and says whether they are what was kept."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from overdrive.core.rng import reseed
from overdrive.forks.effects import only_reading
from overdrive.forks.forked import PATIENCE, Tick, Work
from overdrive.forks.layout import Unfit

# Beyond what it may take, seconds of processor time after which a fetch is taken to go on for ever.
_TOO_LONG = 10
_AT_MOST = PATIENCE / 3  # seconds by the clock: what waits for a disk, or for a core, is told all the same


class Remade(Protocol):
    """Samples of one data set that can be made again."""

    def prepare(self) -> None:
        """Make this forked process what fetches for the loader."""

    def others(self) -> Iterator[int]:
        """Rows to make again besides those that were just served. In the forked process."""

    def difference(self, row: int) -> str:
        """What becomes of the sample when it is made again; "" where it is the same. In the forked process."""

    def differs_here(self, row: int) -> bool:
        """Whether it is another one in the program's process, too; True where that is the same in a forked one."""

    def named(self, row: int) -> str:
        """The sample, in words."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found. `seconds` of processor time went into making samples.

    A difference that is no sample's (its fetch does more than read, say) has no row.
    """

    same: int
    difference: str = ""
    row: int | None = None
    seconds: float = 0.0


def auditing(remade: Remade, rows: list[int], seconds: float) -> Work:
    """Make these rows again first, then others, for so many seconds of processor time, one at the least."""

    def work(tick: Tick) -> dict[str, Any]:
        _end_in_time(seconds)
        reseed(os.getpid())
        return asdict(_look(remade, rows, seconds, tick))

    return work


def _look(remade: Remade, rows: list[int], seconds: float, tick: Tick) -> AuditResult:
    done: set[int] = set()
    row, difference = None, ""
    began, until = time.process_time(), time.monotonic() + _AT_MOST
    try:
        with only_reading(thorough=False):
            remade.prepare()
            began = time.process_time()
            for row in itertools.chain(rows, remade.others()):
                if row in done:
                    continue
                difference = _difference(remade, row, first=not done)
                if difference:
                    break
                done.add(row)
                tick(1)
                if time.process_time() - began > seconds or time.monotonic() > until:
                    break
    except Unfit as error:  # it does more than read
        row, difference = None, str(error)
    return AuditResult(len(done), difference, row, time.process_time() - began)


def _difference(remade: Remade, row: int, first: bool) -> str:
    """What is different at a first fetch only is what comes with a new process: a file that is opened, say."""
    difference = _once(remade, row)
    return _once(remade, row) if difference and first else difference


def _once(remade: Remade, row: int) -> str:
    try:
        return remade.difference(row)
    except MemoryError:
        raise
    except Exception as error:
        first = str(error).strip().split("\n", 1)[0][:200]
        return f"cannot be made ({type(error).__name__}: {first})"


def _end_in_time(seconds: float) -> None:
    """The kernel ends us should a fetch hang: nobody waits for us."""
    most = int(seconds) + _TOO_LONG
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(PATIENCE))
