"""Workers that only read: those that a loader has of us, and those of the program's whose batches are kept.

A batch of ours whose fetch draws random numbers, changes the data set, writes, prints or fails is not handed over: the
program fetches it, and all after it, as it would have done. One of the program's is handed over, and not kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from overdrive.changes.fingerprint import objects_again
from overdrive.core.rng import States
from overdrive.datacache.opened import Opened
from overdrive.datacache.switch import SharedFlag
from overdrive.datacache.unchanged import UnchangedInFork, WatchedFiles
from overdrive.forks.effects import SideEffects, keep_output
from overdrive.forks.layout import Unfit
from overdrive.seams.torch.fetchers import LeftToFetch, fetch_in_worker_by


class OnlyReading:
    """What such a worker does first.

    Args:
        before: what others have for it to do.
        draws: whether fetching may draw random numbers.

    Attributes:
        guard: makes what tells whether the data set is changed, in a worker that is forked. Others look for themselves.
        settles: whether a first fetch changes it.
        watched: the files that the program's process watches. None where a fetch may read others: the program's own
            workers would read them ahead, too.
    """

    def __init__(self, before: Callable[[int], Any] | None, draws: bool) -> None:
        self.before = before
        self.draws = draws
        self.guard: Callable[[], UnchangedInFork] | None = None
        self.settles = True
        self.watched: WatchedFiles | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "guard": None}

    def __call__(self, number: int) -> None:
        if self.before is not None:
            self.before(number)
        keep_output()
        reading = _Reading(self.draws, self.settles, self.watched)
        if self.guard is not None and not self.settles:
            reading.unchanged = self.guard()
        fetch_in_worker_by(reading.fetch)


class Telling:
    """What one of the program's own workers does first, whose batches are kept: it tells when it did more than read, or
    read what nobody watches, before it hands over what came of that.

    Args:
        before: what the program has for it to do.
        kept: what its batches are kept in.
    """

    def __init__(self, before: Callable[[int], Any] | None, kept: KeptSamples) -> None:
        self._before = before
        self._kept = kept
        self._unchanged: UnchangedInFork | None = None

    def __call__(self, number: int) -> None:
        if self._before is not None:
            self._before(number)
        if not self._kept.settles:
            self._unchanged = self._kept.in_fork()
        fetch_in_worker_by(self._fetch)

    def _fetch(self, fetcher: Any, real: Callable[[Any, Any], Any], indices: Any) -> Any:
        if not self._kept.only_reads:
            return real(fetcher, indices)
        before = States.now(with_cuda=False)
        with self._kept.heard() as did:
            batch = real(fetcher, indices)
        try:
            if self._unchanged is None:  # a first fetch opens what it reads from, as it was seen to do in a trial
                watch = objects_again(fetcher.dataset, fetcher.collate_fn).watch
                watch.seal()
                self._unchanged = UnchangedInFork(watch)
            if did() or not before.same(States.now(with_cuda=False)) or self._unchanged.changed():
                self._kept.only_reads.off()
        except Exception:  # what cannot be looked at is not kept
            self._kept.only_reads.off()
        return batch


class KeptSamples(Protocol):
    """The part of what is kept of a data set that its workers need.

    Attributes:
        settles: whether a worker's first fetch changes the data set.
        only_reads: whether all workers did nothing else.
    """

    settles: bool
    only_reads: SharedFlag

    def in_fork(self) -> UnchangedInFork:
        """What tells whether a worker changes the data set."""

    def heard(self) -> AbstractContextManager[Callable[[], str]]:
        """For a fetch. Gives what tells, after it, what it did besides reading files that are watched."""


class _Reading:
    """In the worker."""

    def __init__(self, draws: bool, settles: bool, watched: WatchedFiles | None) -> None:
        self.unchanged: UnchangedInFork | None = None
        self._watched = watched
        self._opened = Opened()
        self._draws = draws
        self._settles = settles
        self._effects = SideEffects()
        self._effects.thread = threading.get_ident()  # another one hands batches over, by sockets and files
        self._effects.paused = True
        self._effects.stop()

    def fetch(self, fetcher: Any, real: Callable[[Any, Any], Any], indices: Any) -> Any:
        """A batch as the fetcher's own method `real` makes it."""
        before = States.now(with_cuda=False)
        if self.unchanged is None:
            self._begin(fetcher, real)
            before.restore()
        self._effects.paused = False
        try:
            with self._opened:
                batch = real(fetcher, indices)
        except Exception as error:
            return LeftToFetch(f"{type(error).__name__}: {error}")
        finally:
            self._effects.paused = True
        assert self.unchanged is not None
        if self._effects.tried:
            return LeftToFetch(f"it {self._effects.tried}")
        if not self._draws and not before.same(States.now(with_cuda=False)):
            return LeftToFetch("it draws random numbers")
        if self._watched is not None and (reason := self._watched.read_besides(self._opened.fresh())):
            return LeftToFetch(reason)
        try:
            self.unchanged.check()
        except Unfit as error:
            return LeftToFetch(str(error))
        return batch

    def _begin(self, fetcher: Any, real: Callable[[Any, Any], Any]) -> None:
        if self._settles:  # as it was seen to do in a trial, with this sample
            with contextlib.suppress(Exception):
                real(fetcher, [0])
        watch = objects_again(fetcher.dataset, fetcher.collate_fn).watch
        watch.seal()
        self.unchanged = UnchangedInFork(watch)
