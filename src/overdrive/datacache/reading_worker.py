"""Workers of a loader that the program has given none: they only read. What is more, the program's own process does.

A batch whose fetch draws random numbers, changes the data set, writes, prints or fails is not handed over: the program
fetches it, and all after it, for itself, as it would have done.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from overdrive.core.rng import States
from overdrive.datacache.effects import Effects, keep_output
from overdrive.datacache.fingerprint import objects_again
from overdrive.datacache.layout import Unfit
from overdrive.datacache.unchanged import UnchangedInFork
from overdrive.seams.torch.fetchers import Again, fetch_in_worker_by


class OnlyReading:
    """What such a worker does first.

    Args:
        before: what others have for it to do.
        draws: whether fetching may draw random numbers.

    Attributes:
        guard: makes what tells whether the data set is changed, in a worker that is forked. Others look for themselves.
        settles: whether a first fetch changes it.
    """

    def __init__(self, before: Callable[[int], Any] | None, draws: bool) -> None:
        self.before = before
        self.draws = draws
        self.guard: Callable[[], UnchangedInFork] | None = None
        self.settles = True

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "guard": None}

    def __call__(self, number: int) -> None:
        if self.before is not None:
            self.before(number)
        keep_output()
        reading = _Reading(self.draws, self.settles)
        if self.guard is not None and not self.settles:
            reading.unchanged = self.guard()
        fetch_in_worker_by(reading.fetch)


class _Reading:
    """In the worker."""

    def __init__(self, draws: bool, settles: bool) -> None:
        self.unchanged: UnchangedInFork | None = None
        self._draws = draws
        self._settles = settles
        self._effects = Effects()
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
            batch = real(fetcher, indices)
        except Exception as error:
            return Again(f"{type(error).__name__}: {error}")
        finally:
            self._effects.paused = True
        assert self.unchanged is not None
        if self._effects.tried:
            return Again(f"it {self._effects.tried}")
        if not self._draws and not before.same(States.now(with_cuda=False)):
            return Again("it draws random numbers")
        try:
            self.unchanged.check()
        except Unfit as error:
            return Again(str(error))
        return batch

    def _begin(self, fetcher: Any, real: Callable[[Any, Any], Any]) -> None:
        if self._settles:  # as it was seen to do in a trial, with this sample
            with contextlib.suppress(Exception):
                real(fetcher, [0])
        watch = objects_again(fetcher.dataset, fetcher.collate_fn).watch
        watch.seal()
        self.unchanged = UnchangedInFork(watch)
