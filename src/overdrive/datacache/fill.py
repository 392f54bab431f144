"""Fills a table by forked processes, which fetch what is missing and write it: at once, or beside the program."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np

from overdrive.changes.fingerprint import objects_again
from overdrive.core.progress import progress
from overdrive.core.rng import reseed
from overdrive.datacache.draws import Generators
from overdrive.datacache.opened import Opened
from overdrive.datacache.randomness import left_alone
from overdrive.datacache.source import Source
from overdrive.datacache.table import Table, shared_bytes
from overdrive.datacache.unchanged import UnchangedInFork
from overdrive.forks.effects import only_reading, stop_where_done
from overdrive.forks.forked import Beside, Tick, Work, in_children
from overdrive.forks.layout import ForkFailed, Unfit
from overdrive.machine.cpu import granted_cores

_NUMBER = struct.Struct("=q")
# Samples that are handed out together: few, so that the last ones are not waited for long.
_BLOCK = 32


Guard = Callable[[], UnchangedInFork]


def fill(table: Table, source: Source, guard: Guard) -> set[str]:
    """Fetch all missing samples, as the loader's worker would, or with one thread as the program itself. What cannot be
    fetched stays missing: the program will meet its error itself.

    Args:
        guard: made in each of the forked processes, and asked before anything is written down.

    Returns:
        the files that samples were read from.

    Raises:
        Unfit: a sample is of another shape, or draws random numbers; or fetching in forks does not work.
    """
    blocks = -(-table.count // _BLOCK)
    done = table.count - table.missing

    def on_tick(count: int) -> None:
        nonlocal done
        done += count
        progress(done, table.count)

    queue = _queue_of(blocks)
    try:
        answers = in_children(
            [_worker(table, source, guard, queue, k) for k in range(min(granted_cores(), blocks))], on_tick
        )
    finally:
        os.close(queue)
        table.count_present()
    return {path for each in answers for path in each["opened"]}


class Filling:
    """A table that is being filled while the program trains, by processes that take only idle cores.

    They take the samples in the order in which the program will want them, ahead of it, or where that
    cannot be known from the far end; then whatever else is missing.
    """

    def __init__(
        self, table: Table, source: Source, guard: Guard, coming: Callable[[], Iterable[int]] | None, most: int
    ) -> None:
        """
        Args:
            guard: see `fill`.
            coming: gives the indices that the program will fetch next; called in the forked processes only.
            most: so many processes at the most.

        Raises:
            Unfit: no process could be started.
        """
        self.opened: set[str] = set()  # files that samples were read from, as far as is known
        self.unseen = False  # a process failed, and what it had opened is not known
        self._taken = 0
        self._skip = shared_bytes(8).view(np.int64)  # no file or lock, on which a process of low priority could sit
        self._blocks = -(-table.count // _BLOCK)
        try:
            self._queue = _queue_of(-(-2 * table.count // _BLOCK))
        except OSError as error:
            raise ForkFailed(f"there is no place for a queue ({error.strerror})") from None
        fillers = max(1, min(most, granted_cores() - 1, self._blocks))  # one core is the program's
        try:
            self._processes = Beside(
                [_filler(table, source, guard, self._queue, self._skip, k, coming) for k in range(fillers)]
            )
        except BaseException:
            os.close(self._queue)
            raise

    @property
    def going(self) -> bool:
        return self._processes.going

    def taken(self, samples: int, missed: bool) -> None:
        """The program has taken the next samples, of which it missed some: let the fillers overtake it."""
        self._taken += samples
        if missed:
            self._skip[0] = min(self._blocks, (self._taken + 2 * samples) // _BLOCK + 1)

    def look(self) -> None:
        """See which processes have come to their end.

        Raises:
            Unfit: the samples turned out to be unfit.
        """
        for child in self._processes.ended():
            try:
                self.opened.update(child.result()["opened"])
            except ForkFailed:
                self.unseen = True

    def end(self) -> None:
        self.unseen |= self._processes.going
        self._processes.end()
        os.close(self._queue)


def _filler(
    table: Table,
    source: Source,
    guard: Guard,
    queue: int,
    skip: Any,
    number: int,
    coming: Callable[[], Iterable[int]] | None,
) -> Work:
    @only_reading()
    def work(tick: Tick) -> dict[str, Any]:
        check = _checking(source, guard)
        wanted = [*_order(table, source, coming), *range(table.count)]
        reseed(number)
        generators = source.generators()
        with Opened() as opened:
            while taken := os.read(queue, _NUMBER.size):
                first = _NUMBER.unpack(taken)[0] * _BLOCK
                if first < skip[0] * _BLOCK:
                    continue
                block = dict.fromkeys(wanted[first : first + _BLOCK])
                rows = [row for row in block if not table.present[row]]
                _fetch(table, source, rows, generators, check)
                tick(len(rows))
        return {"opened": sorted(opened.paths())}

    return work


def _order(table: Table, source: Source, coming: Callable[[], Iterable[int]] | None) -> list[int]:
    """What the program will want, as far as a copy of its sampler tells; else from the far end."""
    try:
        indices = list(islice(coming(), table.count)) if coming is not None else []
    except Exception:
        indices = []
    rows = source.rows(table, indices or None)
    order: list[int] = list(range(table.count))[::-1] if rows is None else rows.tolist()
    return order


def _queue_of(count: int) -> int:
    """The numbers from 0 on, in a file. Its place is shared by forked processes, so each read takes the next one."""
    if hasattr(os, "memfd_create"):
        queue = os.memfd_create("overdrive")
    else:
        queue, name = tempfile.mkstemp()
        os.unlink(name)
    numbers = b"".join(map(_NUMBER.pack, range(count)))
    while numbers:
        numbers = numbers[os.write(queue, numbers) :]
    os.lseek(queue, 0, os.SEEK_SET)
    return queue


def fill_here(table: Table, source: Source, opened: Opened) -> None:
    """The same in this process.

    Raises:
        Unfit: as `fill`.
    """
    generators = source.generators()
    for block in range(-(-table.count // _BLOCK)):
        with left_alone(generators.now), opened:
            _fetch(table, source, _missing(table, block), generators)
        progress(table.count - table.missing, table.count)


def _missing(table: Table, block: int) -> list[int]:
    first = block * _BLOCK
    return [k for k in range(first, min(first + _BLOCK, table.count)) if not table.present[k]]


def _worker(table: Table, source: Source, guard: Guard, queue: int, number: int) -> Work:
    def work(tick: Tick) -> dict[str, Any]:
        source.enter_worker(number)
        check = _checking(source, guard)
        reseed(number)
        generators = source.generators()
        with only_reading(), Opened() as opened:
            while taken := os.read(queue, _NUMBER.size):
                (block,) = _NUMBER.unpack(taken)
                rows = _missing(table, block)
                _fetch(table, source, rows, generators, check)
                tick(len(rows))
        return {"opened": sorted(opened.paths())}

    return work


def _checking(source: Source, guard: Guard) -> Callable[[], None]:
    """Raises Unfit where a fetch did more in this forked process than to read."""
    if source.workers:  # which may open something with their first fetch, say, and then have it
        with contextlib.suppress(Exception):
            source.fetch([0])
        watch = objects_again(*source.roots).watch
        watch.seal()
        unchanged = UnchangedInFork(watch)
    else:
        unchanged = guard()

    def check() -> None:
        unchanged.check()
        stop_where_done()

    return check


def _fetch(
    table: Table, source: Source, rows: list[int], generators: Generators, check: Callable[[], None] = lambda: None
) -> None:
    """Fetch these together, or one by one where one of them fails.

    Raises:
        Unfit: they draw random numbers, from a generator of the data set's own perhaps, do more than to read, or are of
            another shape.
    """
    if not rows:
        return
    before = generators.now()
    try:
        batch = source.fetch(rows)
    except Exception:
        for row in rows if len(rows) > 1 else ():
            _fetch(table, source, [row], generators, check)
        return
    if not before.same(generators.now()):
        raise Unfit("fetching a sample draws random numbers")
    check()
    if not table.write(np.array(rows, dtype=np.intp), batch):
        raise Unfit("its samples differ in shape or kind")
