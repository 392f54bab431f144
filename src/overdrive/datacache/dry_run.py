"""Dry run in a forked process: whether a data set's samples are always the same and can be stacked."""

from __future__ import annotations

import random
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.changes.called import Called, Calls
from overdrive.changes.files import Files, stats_of
from overdrive.changes.fingerprint import Fingerprint, objects_again, of_objects
from overdrive.core.progress import progress
from overdrive.core.rng import States, reseed
from overdrive.datacache.codes import Coded, coded_from_json, worth_coding
from overdrive.datacache.encoding import encode
from overdrive.datacache.opened import LookedFor
from overdrive.datacache.randomness import left_alone
from overdrive.datacache.source import Source, spread
from overdrive.datacache.table import Table, bytes_of, same_bits
from overdrive.forks.effects import only_reading
from overdrive.forks.forked import Tick, in_child
from overdrive.forks.layout import Layout, Unfit, layout_of, tensors_of
from overdrive.seams.points import reason_of
from overdrive.seams.torch.fetchers import become_worker

_SAMPLES = 12
_WARMED_UP_WITH = 2
_LARGEST_BATCH = 64
_EVERY = 4  # of the tried samples, that are fetched here too
_NAMED = 64
_LOOKED_AT = 16  # samples of a stored table, when it is opened


class Unstacked(Unfit):
    """Its batches are other things than samples stacked: each sample by itself may be kept all the same."""


@dataclass(frozen=True)
class DryRunResult:
    """What was learnt of the samples."""

    layout: Layout
    seconds: float  # to fetch one sample here
    opened: list[str]  # files that the tried samples were read from, folders that were listed or looked through
    settles: bool  # its first fetch changed the data set, later ones did not: it opens a file, say
    called: Called  # what the tried samples came to in libraries
    checks: dict[int, int]  # crc32 of some samples, fetched in the forked process
    coded: Coded = ()  # leaves that may be kept as codes


def prove(source: Source, before: Fingerprint) -> DryRunResult:
    """Fetch some samples several times, with other random states, alone and in batches.

    Args:
        before: of the data set as it is.

    Raises:
        Unstacked: there are no batches of these samples, or they hold other things than tensors; with the reason.
        Unfit: the samples change, or are more than stacked; with the reason.
    """
    answer = in_child(lambda tick: _examined(source, before, tick), lambda _: progress(0, source.count))
    if "unstacked" in answer:
        raise Unstacked(answer["unstacked"])
    checks = {int(index): crc for index, crc in answer["checks"].items()}
    layout = Layout.from_json(answer["layout"])
    coded = coded_from_json(layout, answer["coded"])
    return DryRunResult(layout, answer["seconds"], answer["opened"], answer["settles"], answer["called"], checks, coded)


@dataclass(frozen=True)
class Fetched:
    """What fetching in a worker came to."""

    opened: list[str]  # see `DryRunResult`
    called: Called  # what they came to in libraries
    settles: bool  # a first fetch changes the data set, whatever sample it is of; later ones do not


def fetched_in_worker(source: Source, workers: int, draws: bool) -> Fetched:
    """Fetch some samples as one of these workers, whether the source has some or not; whether the data set is still
    what it was then, its first fetch left out, and the samples are those that are fetched here, where it has none.

    Args:
        draws: whether fetching may draw random numbers.

    Raises:
        Unfit: it is not, or that cannot be seen; with the reason.
    """
    seen = objects_again(*source.roots)
    if seen.hidden_here:
        raise Unfit(f"whether its data set changes cannot be seen: {seen.hidden_here}")
    if seen.written_file:
        raise Unfit("its data set may write to a file that is open, in which workers would write in another order")
    if seen.asks_where:
        raise Unfit("its data set may ask whether it is in a worker")
    indices = spread(source.count, _SAMPLES)
    told = in_child(lambda tick: _fetch_as_worker(source, workers, draws, indices, seen.files, tick))
    settles = told["settled"] != seen.of_objects
    if settles:  # what a first fetch opens, say, which workers must not share: so there is none here
        other = in_child(lambda tick: _fetch_as_worker(source, workers, draws, indices[::-1][:1], seen.files, tick))
        if other["settled"] != told["settled"]:
            raise Unfit("fetching a sample changes the data set")
        return Fetched(told["opened"], told["called"], settles)
    if source.workers:
        return Fetched(told["opened"], told["called"], settles)
    states = States.now()
    try:
        for index, there in list(zip(indices, told["sums"], strict=True))[::_EVERY]:
            reseed(index)
            if there != _sum_of(source, index):
                raise Unfit("a sample comes out otherwise in a worker")
    finally:
        states.restore()
    return Fetched(told["opened"], told["called"], settles)


@only_reading()
def _fetch_as_worker(
    source: Source, workers: int, draws: bool, indices: list[int], watched: Files, tick: Tick
) -> dict[str, Any]:
    """Runs in a forked process."""
    become_worker(source.dataset, 0, workers, source.prepare_worker)
    sums, opened, calls, drew = [], LookedFor(), Calls(), False
    settled: Fingerprint | None = None
    for index in [indices[0], *indices]:
        reseed(index)
        before = States.now(with_cuda=False)
        with opened, calls:
            sums.append(_sum_of(source, index))
        drew = drew or not before.same(States.now(with_cuda=False))
        settled = settled or objects_again(*source.roots)
        tick(1)
    if drew and not draws:
        raise Unfit("fetching a sample draws random numbers, of which each worker has its own")
    assert settled is not None
    if of_objects(*source.roots) != settled.of_objects or settled.watch.replaced():
        raise Unfit("fetching a sample changes the data set")
    found = {"opened": opened.found(watched), "called": calls.told()}
    return {**found, "settled": settled.of_objects, "sums": sums[1:]}


def _sum_of(source: Source, index: int) -> int | None:
    """Of a sample; None where there is none that can be compared."""
    try:
        form, data = encode((source.fetch([index]),))
    except Exception:  # the program meets it in its own time
        return None
    return zlib.crc32(repr(form).encode(), zlib.crc32(data.tobytes()))


def same_here(source: Source, layout: Layout, checks: dict[int, int]) -> bool:
    """Whether samples come out the same in this process, with its threads, as they did in a forked one.

    Only for a data set that has been proved to be left unchanged by a fetch.
    """
    with left_alone():
        return all(_crc(source.fetch([index]), layout) == crc for index, crc in checks.items())


def still_true(source: Source, table: Table) -> Called | None:
    """What some samples, fetched now, come to in libraries; None where they are not what the table holds.

    Here, or as in a worker if it has some.
    """
    there = np.flatnonzero(table.present).tolist()
    rows = random.Random().sample(there, min(_LOOKED_AT, len(there)))

    def compare(tick: Tick) -> dict[str, Called | None]:
        source.enter_worker(0)
        calls = Calls()
        for row in rows:
            with calls:
                fetched = source.fetch([row])
            if not same_bits(fetched, table.gather(_rows(table, [row])), table.layout):
                return {"called": None}
            tick(1)
        return {"called": calls.told()}

    if source.workers:
        called: Called | None = in_child(compare)["called"]
        return called
    with left_alone():
        return compare(lambda count: None)["called"]


def _examined(source: Source, before: Fingerprint, tick: Tick) -> dict[str, Any]:
    try:
        return _examine(source, before, tick)
    except Unstacked as error:
        return {"unstacked": str(error)}


@only_reading()
def _examine(source: Source, before: Fingerprint, tick: Tick) -> dict[str, Any]:
    """The whole examination; runs in the forked process.

    What comes out with a gradient is not to go unseen, unless nothing is kept from one mode to the other.
    """
    import torch

    if not before.asks_mode:
        torch.set_grad_enabled(True)
    # Those that are named singly: a database, say, which is written to where no audit event tells of it.
    named = before.files.named()[:_NAMED]
    stats = stats_of(named)
    indices = spread(source.count, _SAMPLES)  # of rows, as everywhere in this file
    source.enter_worker(0)
    reseed(1)
    _each(source, indices[1 : 1 + _WARMED_UP_WITH], tick)
    settled = objects_again(*source.roots)

    reseed(2)
    states = States.now(with_cuda=False)
    began = time.perf_counter()
    with LookedFor() as opened:
        singles = _each(source, indices, tick)
    seconds = (time.perf_counter() - began) / len(indices)
    if not states.same(States.now(with_cuda=False)):
        raise Unfit("fetching a sample draws random numbers")

    source.enter_worker(source.workers - 1, epoch=1)
    reseed(3)
    states = States.now(with_cuda=False)
    with opened, Calls() as calls:
        again = list(reversed(_each(source, indices[::-1], tick)))
        batches = _batches(source, indices)
    if not states.same(States.now(with_cuda=False)):
        raise Unfit("fetching a sample draws random numbers")
    if of_objects(*source.roots) != settled.of_objects or settled.watch.replaced() or stats_of(named) != stats:
        raise Unfit("fetching a sample changes the data set")

    try:
        layout = layout_of(batches[0][1])
    except Unfit as error:
        raise Unstacked(str(error)) from None
    table = _compare(layout, indices, singles, again, batches)
    return {
        "layout": layout.to_json(),
        "coded": worth_coding(table) if source.filled is None else (),
        "seconds": seconds,
        "opened": opened.found(before.files),
        "called": calls.told(),
        "settles": settled.of_objects != before.of_objects,
        "checks": {indices[k]: _crc(singles[k], layout) for k in range(0, len(indices), 4)},
    }


def _each(source: Source, indices: list[int], tick: Tick) -> list[Any]:
    fetched = []
    for index in indices:
        fetched.append(source.fetch([index]))
        tick(1)
    return fetched


def _batches(source: Source, indices: list[int]) -> list[tuple[list[int], Any]]:
    """Batches to try, and their places: all in a row, the loader's size with repetitions, a few backwards, one."""
    mixed, count = random.Random(0), len(indices)
    size = max(1, min(source.batch_size, _LARGEST_BATCH))
    picks = [list(range(count)), [mixed.randrange(count) for _ in range(size)]]
    picks += [list(range(count))[::-1][:5], [count // 2]]
    try:
        return [(each, source.fetch([indices[k] for k in each])) for each in picks]
    except Exception as error:  # of different shapes, perhaps, where the program makes a batch of each
        raise Unstacked(f"its samples cannot be fetched together ({reason_of(error)})") from None


def _compare(
    layout: Layout,
    indices: list[int],
    singles: list[Any],
    again: list[Any],
    batches: list[tuple[list[int], Any]],
) -> Table:
    """A table of the samples, which are what the batches are made of."""
    table = Table.in_memory(layout, len(indices))
    for row, (one, other) in enumerate(zip(singles, again, strict=True)):
        if not table.write(_rows(table, [row]), one):
            raise Unfit("its samples differ in shape or kind, or a batch is not one row a sample")
        if not same_bits(one, other, layout):
            raise Unfit("its samples change from fetch to fetch")
        if _places(one, layout) & _places(other, layout):
            raise Unfit("its batches share memory with the data set")
    for picks, batch in batches:
        if not same_bits(batch, table.gather(_rows(table, picks)), layout):
            raise Unfit("its batches are more than samples stacked (padded, mixed or sorted, perhaps)")
    return table


def _rows(table: Table, indices: list[int]) -> Any:
    rows = table.rows(indices)
    assert rows is not None
    return rows


def _places(batch: Any, layout: Layout) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(batch, layout.structure) or ()}


def _crc(batch: Any, layout: Layout) -> int:
    crc = 0
    for tensor in tensors_of(batch, layout.structure) or ():
        crc = zlib.crc32(bytes_of(tensor).tobytes(), crc)
    return crc
