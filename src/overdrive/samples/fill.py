"""Fills a table at once: forked processes, one a core, fetch what is missing and write it down."""

from __future__ import annotations

import os
import struct
import tempfile
from dataclasses import dataclass
from typing import Any

from overdrive.samples import progress
from overdrive.samples.child import Tick, Work, in_children
from overdrive.samples.files import Opened
from overdrive.samples.layout import Unfit
from overdrive.samples.randomness import States, left_alone, reseed
from overdrive.samples.source import Source
from overdrive.samples.table import Table

_NUMBER = struct.Struct("=q")
# Samples that are handed out together: few, so that the last ones are not waited for long.
_BLOCK = 32


@dataclass
class Filled:
    opened: set[str]  # files that samples were read from
    failures: int  # samples that could not be fetched; the program will meet their errors itself


def fill(table: Table, source: Source) -> Filled:
    """Fetch all missing samples, as the loader's worker would, or with one thread as the program itself.

    Raises:
        Unfit: a sample is of another shape, or draws random numbers; or fetching in forks does not work.
    """
    blocks = -(-table.count // _BLOCK)
    done = table.count - table.missing

    def on_tick(count: int) -> None:
        nonlocal done
        done += count
        progress(done, table.count)

    # A file's place is shared by forked processes, so each read takes the next number from this queue.
    with tempfile.TemporaryFile(buffering=0) as queue:
        queue.write(b"".join(map(_NUMBER.pack, range(blocks))))
        queue.seek(0)
        works = [_worker(table, source, queue.fileno(), k) for k in range(min(_cores(), blocks))]
        try:
            told = in_children(works, on_tick)
        finally:
            table.count_present()
    return Filled({path for each in told for path in each["opened"]}, sum(each["failures"] for each in told))


def fill_here(table: Table, source: Source, opened: Opened) -> int:
    """The same in this process; returns how many samples could not be fetched.

    Raises:
        Unfit: as `fill`.
    """
    failures = 0
    for block in range(-(-table.count // _BLOCK)):
        with left_alone(), opened:
            failures += _fetch(table, source, _missing(table, block))
        progress(table.count - table.missing, table.count)
    return failures


def _missing(table: Table, block: int) -> list[int]:
    first = block * _BLOCK
    return [k for k in range(first, min(first + _BLOCK, table.count)) if not table.present[k]]


def _worker(table: Table, source: Source, queue: int, number: int) -> Work:
    def work(tick: Tick) -> dict[str, Any]:
        source.enter_worker(number)
        reseed(number)
        failures = 0
        with Opened() as opened:
            while taken := os.read(queue, _NUMBER.size):
                (block,) = _NUMBER.unpack(taken)
                indices = _missing(table, block)
                failures += _fetch(table, source, indices)
                tick(len(indices))
        return {"opened": sorted(opened.paths()), "failures": failures}

    return work


def _fetch(table: Table, source: Source, indices: list[int]) -> int:
    """Fetch these together, or one by one where one of them fails; returns how many failed."""
    if not indices:
        return 0
    before = States.now(with_cuda=False)
    try:
        batch = source.fetch(indices)
    except Exception:
        if len(indices) == 1:
            return 1
        return sum(_fetch(table, source, [index]) for index in indices)
    if not before.same(States.now(with_cuda=False)):
        raise Unfit("fetching a sample draws random numbers")
    rows = table.rows(indices)
    if rows is None or not table.write(rows, batch):
        raise Unfit("its samples differ in shape or kind")
    return 0


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
