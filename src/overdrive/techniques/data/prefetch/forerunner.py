"""A forked copy of the program's process that goes on with a loader's iterator: it makes the next batches.

Being a copy, it draws the same indices and the same random numbers as the program is going to, and whatever
it does to the data set stays in it. With every batch it tells from which states it was made; only the program
knows whether these came true.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from overdrive.datacache.effects import Effects, cut_off
from overdrive.datacache.layout import Unfit
from overdrive.datacache.table import Bytes, shared_bytes
from overdrive.techniques.data.prefetch import generators
from overdrive.techniques.data.prefetch.parcel import pack, unpack


@dataclass(frozen=True)
class Made:
    """A batch that is ready, or (`lack`) why there is none.

    Attributes:
        index: what the sampler gave, as text.
        before: digests of the generators that the fetch drew from, as they were before it.
        after: their states after it.
    """

    lack: str
    index: str = ""
    before: dict[str, str] | None = None
    after: dict[str, generators.Told] | None = None
    told: Any = None
    memory: Bytes | None = None

    def batch(self, pinned: bool = False) -> Any:
        """In memory of its own."""
        assert self.memory is not None
        return unpack(self.told, self.memory, pinned)


class Forerunner:
    """Starts at once, and stays `depth` batches ahead at most."""

    def __init__(self, iterator: Any, depth: int, slot_bytes: int, disturbed: Callable[[], bool]) -> None:
        """
        Args:
            disturbed: whether the data set is another one than when this began; asked after each fetch.
        """
        self._slots = shared_bytes(depth * slot_bytes).reshape(depth, slot_bytes)
        self._taken = 0
        self._lines = b""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # what is still in its buffer must not come out twice
                stream.flush()
        self._results, writing = os.pipe()
        reading, self._freed = os.pipe()
        began = time.perf_counter()
        self._owner = parent = os.getpid()
        states = generators.states()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks with threads
            self.pid = os.fork()
        if self.pid == 0:
            _run(iterator, self._slots, writing, reading, parent, states, disturbed)
        os.close(writing)
        os.close(reading)
        self.start_seconds = time.perf_counter() - began

    @property
    def mine(self) -> bool:
        """False in a process that the program itself has forked meanwhile."""
        return os.getpid() == self._owner

    def ready(self) -> bool:
        """Whether `next` would not wait."""
        return b"\n" in self._lines or bool(select.select([self._results], [], [], 0)[0])

    def next(self, patience: float) -> Made:
        """The next batch. Call `free` when it has been read."""
        until = time.monotonic() + patience
        while b"\n" not in self._lines:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._results], [], [], left)[0]:
                return Made("a batch did not come in time")
            data = os.read(self._results, 1 << 16)
            if not data:
                return Made("the forked process ended")
            self._lines += data
        line, self._lines = self._lines.split(b"\n", 1)
        slot = self._slots[self._taken % len(self._slots)]
        self._taken += 1
        return Made(**json.loads(line), memory=slot)

    def free(self) -> None:
        """The batch taken last has been copied; its place may be used again."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._freed, b".")

    def end(self) -> None:
        if not self.pid or not self.mine:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._results)
        os.close(self._freed)
        self.pid = 0


def text_of(index: Any) -> str:
    """
    Raises:
        Unfit: it is something whose text does not say all.
    """
    for each in index if type(index) in (list, tuple) else [index]:
        if type(each) not in (int, str) and not isinstance(each, np.integer):
            raise Unfit("its sampler gives other things than numbers and texts")
    return repr(index)


def _run(
    iterator: Any,
    slots: Bytes,
    results: int,
    freed: int,
    parent: int,
    states: dict[str, generators.Told],
    disturbed: Callable[[], bool],
) -> None:
    """Never returns, and runs none of the parent's cleaning up."""
    try:
        gc.disable()  # an iterator of the parent's that is collected here would stop the parent's workers
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        cut_off(keep=(results, freed))
        import torch

        torch.set_num_threads(1)  # as torch's workers do: OpenMP's threads did not survive the fork
        for name, state in states.items():
            generators.restore(name, state)  # Python seeds its generator anew in a forked process
        effects = Effects()
        effects.stop()
        free = len(slots)
        number = 0
        while True:
            while not free:
                if os.getppid() != parent:
                    return
                if select.select([freed], [], [], 1.0)[0]:
                    told = os.read(freed, 64)
                    if not told:
                        return
                    free += len(told)
            free -= 1
            message = _make(iterator, slots[number % len(slots)], effects, disturbed)
            number += 1
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(results, data) :]
            if message["lack"]:
                return  # what comes after it would rest on a batch that came otherwise
    finally:
        os._exit(0)


def _make(iterator: Any, slot: Bytes, effects: Effects, disturbed: Callable[[], bool]) -> dict[str, Any]:
    try:
        index = iterator._next_index()
        text = text_of(index)
        before = generators.states()
        batch = iterator._dataset_fetcher.fetch(index)
        after = generators.states()
        if effects.tried:  # the program's own fetch will do it, at its time
            return {"lack": f"fetching a sample does more than read: it {effects.tried}"}
        if disturbed():
            return {"lack": "fetching a sample changes the data set"}
        parcel = pack(batch)
        if parcel.size > len(slot):
            return {"lack": "its batches grow"}
        parcel.write(slot)
    except StopIteration:
        return {"lack": "the epoch ends"}
    except Unfit as error:
        return {"lack": str(error)}
    except BaseException as error:  # the program's own fetch will raise it, where it belongs
        return {"lack": f"a sample could not be fetched ({type(error).__name__})"}
    drawn = generators.drawn_from(before, after)
    return {
        "lack": "",
        "index": text,
        "before": {name: generators.digest(before[name]) for name in drawn},
        "after": {name: after[name] for name in drawn},
        "told": parcel.told,
    }
