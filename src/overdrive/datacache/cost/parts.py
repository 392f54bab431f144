"""What an item of a data set costs, part by part, found out in a forked process.

*read*: reading as many bytes again, from the files that the items were read from, by then in the page
cache: a cold disk is not in it, and what a C library opens unseen counts as decode. *transform*: the calls
of the callables that the data set holds, found by standing in for each; one that opens a file (an image
folder's loader, say) is no transform. *decode*: the rest of fetching an item. *collate*: the loader's own.
One thread does it all, as in a worker. It is
seen as well whether items draw random numbers. What the process does to the data set is gone with it.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from overdrive.datacache.cost.fetching import Fetching, apart
from overdrive.datacache.cost.stand_in import DataFiles, transforming
from overdrive.datacache.draws import Generators, contents_of
from overdrive.forks.forked import Tick
from overdrive.forks.layout import Unfit

_ITEMS = 32  # that are looked at; fewer where they take longer than this together:
_SECONDS = 1.0
# As many as prefix_cache tries: where none of them draws, it keeps nothing either.
_ENOUGH = 12
_LARGEST_PIECE = 16 << 20  # read at once


@dataclass(frozen=True)
class Item:
    """What was seen of fetching one."""

    seconds: dict[str, float]  # by part ("read", "decode", "transform", "collate")
    draws: bool | None  # whether random numbers were drawn; None where too few items were seen to say that none are


def examine(fetching: Fetching, on_tick: Tick | None = None) -> Item:
    """
    Raises:
        Unfit: it cannot be found out without harm; with the reason.
    """
    answer = apart(fetching, lambda tick: _examine(fetching, tick), on_tick)
    return Item(dict(answer["seconds"]), answer["draws"])


def _examine(fetching: Fetching, tick: Tick) -> dict[str, Any]:
    """The whole examination; runs in the forked process."""
    fetching.enter_worker()
    files = DataFiles()
    drawing = _Drawing(contents_of(fetching.dataset).generators)
    with files:
        batches = _warm_up(fetching, drawing, tick)
        count = sum(map(len, batches))
        bytes_before = _bytes_read()
        began = time.perf_counter()
        samples = [fetching.items(indices) for indices in batches]
        fetched = time.perf_counter() - began
        read_bytes = _bytes_read() - bytes_before
        tick(count)
        began = time.perf_counter()
        for each in samples:
            fetching.collate(each)
        collated = time.perf_counter() - began
        tick(count)
    read = _seconds_to_read(files.paths_of_data(), read_bytes)
    tick(count)
    transform = fetched * transforming(fetching, batches, files)
    read = min(read, fetched - transform)
    parts = {"read": read, "decode": fetched - read - transform, "transform": transform, "collate": collated}
    draws = drawing.seen or (False if count >= min(_ENOUGH, len(fetching.dataset)) else None)
    return {"seconds": {part: seconds / count for part, seconds in parts.items()}, "draws": draws}


class _Drawing:
    """Whether fetching an item moved one of the random generators."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self.seen = False

    def items(self, fetching: Fetching, index: Any) -> list[Any]:
        if self.seen:
            return fetching.items([index])
        before = self._generators.now()
        items = fetching.items([index])
        self.seen = not before.same(self._generators.now())
        return items


def _warm_up(fetching: Fetching, drawing: _Drawing, tick: Tick) -> list[list[Any]]:
    """Fetch until there are enough items or time is up; returns the indices, batch by batch."""
    began = time.perf_counter()
    batches: list[list[Any]] = []
    for indices in fetching.sampler:
        batches.append([])
        samples = []
        for index in list(indices)[:_ITEMS]:
            samples += drawing.items(fetching, index)
            batches[-1].append(index)
            tick(1)
            if time.perf_counter() - began > _SECONDS:
                break
        fetching.collate(samples)
        if sum(map(len, batches)) >= _ITEMS or time.perf_counter() - began > _SECONDS:
            break
    batches = [each for each in batches if each]
    if not batches:
        raise Unfit("it has no batch")
    return batches


def _bytes_read() -> int:
    """Bytes read by all system calls of this process so far, those of C libraries too; 0 where unknown."""
    try:
        with open("/proc/self/io") as counters:
            return int(counters.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _seconds_to_read(paths: list[str], wanted: int) -> float:
    """The time of reading so many bytes from these files; what is in them not often enough is read again."""
    _read_once(paths, wanted)
    began = time.perf_counter()
    got = _read_once(paths, wanted)
    seconds = time.perf_counter() - began
    return seconds * max(1.0, wanted / got) if got else 0.0


def _read_once(paths: list[str], wanted: int) -> int:
    got = 0
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            while got < wanted and (piece := file.read(min(_LARGEST_PIECE, wanted - got))):
                got += len(piece)
        if got >= wanted:
            break
    return got
