"""The next batches of samples that are gathered, by a thread while the program works on this one.

What is gathered from a complete table of kept samples is a function of the indices alone: no random number is drawn,
and no code of the program's runs. So a thread may do it, which a data set's own fetch is not left to.

A batch made early is handed out only where the program's own next index is the one it was made from, and the table
still stands for the data set. The indices are known before the program draws them where nobody can tell the
difference: torch's own samplers draw from generators of their own, or all at once with the first index; the first
index and the last are drawn at their own time.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overdrive.datacache.buffers import Buffers
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.loader import gather_early
from overdrive.datacache.offers import Copier, Give, Offers, tensors_in
from overdrive.datacache.table import Rows
from overdrive.seams.torch import drawn_indices, iterators

# To hand a batch over takes 30 to 100 µs, and where there is no GPU nothing else is won.
LEAST_SECONDS = 0.0003
_PATIENCE = 5.0


class _Rest:
    """Lets a process be forked between two batches only.

    What a thread holds at a fork, nobody ever gives back in the child: locks of allocators, of the dynamic linker, of
    a driver. A program that forks (workers, for one) has no thread of ours without us.
    """

    def __init__(self) -> None:
        self.working = threading.Lock()
        self._forking = 0  # the thread that holds it for a fork

    def before_fork(self) -> None:
        if self.working.acquire(timeout=_PATIENCE):
            self._forking = threading.get_ident()

    def in_parent(self) -> None:
        if self._forking == threading.get_ident():
            self._forking = 0
            self.working.release()

    def in_child(self) -> None:
        self.working, self._forking = threading.Lock(), 0


_REST = _Rest()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_REST.before_fork, after_in_parent=_REST.in_parent, after_in_child=_REST.in_child)


@dataclass
class _Job:
    rows: Rows
    kept: CachedDataset
    buffers: Buffers
    copier: Copier | None
    batch: Any = None
    copies: list[tuple[Any, Any, Give]] = field(default_factory=list)
    failed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Thread:
    """One for all loaders of a session; it ends with the program, or with the session."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="overdrive: batches", daemon=True)
        self._thread.start()
        self._owner = os.getpid()

    @property
    def mine(self) -> bool:
        """False in a forked process, which has no such thread."""
        return os.getpid() == self._owner

    def order(self, job: _Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        self._jobs.put(None)
        if self.mine:
            self._thread.join(_PATIENCE)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with _REST.working:
                try:
                    job.batch = job.kept.table.gather(job.rows, buffers=job.buffers)
                    if copier := job.copier:
                        job.copies = [(each, copier.device, copier.start(each)) for each in tensors_in(job.batch)]
                except Exception:  # the program's own gathering will meet it
                    job.failed = True
                job.done.set()
                del job  # or the last batch would be held until the next


class Gathering:
    """Of one iterator, whose batches are gathered. Whether the table stands for the data set is looked at before.

    Args:
        depth: batches that are gathered early: each has as much time as a step takes.
        coming: what the program's next indices will be, so many at most.
        copier: gives what copies batches to the GPU, None where there is nothing to copy.
        taken: told of each batch that came true.
        wanted: whether batches are to be gathered early now.
    """

    def __init__(
        self,
        thread: Thread,
        kept: CachedDataset,
        coming: Callable[[int], list[Any]],
        pins: bool,
        depth: int,
        copier: Callable[[], Copier | None],
        offers: Offers,
        taken: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._thread = thread
        self._kept = kept
        self._depth = depth
        self._coming = coming
        self._buffers = {False: Buffers(), True: Buffers(pinned=True)}
        self._pins = pins
        self._copier = copier
        self._offers = offers
        self._taken = taken
        self._wanted = wanted
        self._jobs: deque[_Job] = deque()
        self._seconds = 0.0  # for the latest batch gathered here

    def batch(self, rows: Rows) -> Any:
        """The batch of these samples, all of which are there and as they should be."""
        alike = self._wanted() and self._thread.mine and _in_no_mode()
        batch = self._early(rows) if alike else None
        if batch is None:
            self._jobs.clear()
            began = time.perf_counter()
            batch = self._kept.table.gather(rows, buffers=self._buffers[self._pins])
            self._seconds = time.perf_counter() - began
        if alike:
            self._order_more()
        return batch

    def _early(self, rows: Rows) -> Any:
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        done = np.array_equal(job.rows, rows) and job.done.wait(_PATIENCE) and not job.failed
        if not done or not self._kept.table.complete:
            return None
        for tensor, device, give in job.copies:
            self._offers.add(tensor, device, give)
        self._taken()
        return job.batch

    def _order_more(self) -> None:
        copier = self._copier()
        if copier is None and self._seconds < LEAST_SECONDS:
            return
        if not self._kept.table.complete:
            return
        for indices in self._coming(self._depth)[len(self._jobs) :]:
            rows = self._kept.rows(indices)
            if rows is None:
                return
            pinned = self._pins or (copier is not None and copier.needs_pinned)
            job = _Job(rows, self._kept, self._buffers[pinned], copier)
            self._jobs.append(job)
            self._thread.order(job)


def gather_ahead(loader: Any, iterator: Any, kept: CachedDataset, **how: Any) -> str:
    """Let the batches of an iterator, which come from what is kept, be gathered early; or why not.

    Args:
        how: as for `Gathering`.
    """
    drawn: Any = drawn_indices.indices_of(iterator)
    if not isinstance(drawn, drawn_indices.Ahead):
        if not drawn_indices.can_be_peeked(loader):
            return "its sampler is not one of torch's, whose indices can be known before"
        drawn = drawn_indices.Peeking(drawn, len(iterator))
        drawn_indices.draw_from(iterator, drawn)
    gather_early(iterator, Gathering(kept=kept, coming=drawn.coming, pins=iterators.pins(iterator), **how))
    return ""


def _in_no_mode() -> bool:
    """Whether this thread makes tensors as any other does."""
    import torch

    return not torch.is_inference_mode_enabled() and torch.get_default_device().type == "cpu"
