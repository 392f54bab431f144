"""How the table of a data set is filled: at once, by idle cores beside the program, and as the program fetches; and how
it gets its place on disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from overdrive.changes.fingerprint import fingerprint
from overdrive.core.progress import log
from overdrive.datacache.fill import Filling, fill, fill_here
from overdrive.datacache.opened import Opened
from overdrive.datacache.partial_table import PartialTable
from overdrive.datacache.source import Source
from overdrive.datacache.table import Table
from overdrive.datacache.unchanged import Unchanged
from overdrive.forks.forked import may_fork
from overdrive.forks.layout import ForkFailed, Unfit

# Seconds of fetching that are left, from which on forks are worth it: one takes 5 to 50 ms.
WORTH_FILLING_BESIDE = 0.5
_MOST_FILLINGS = 3  # attempts: a fill is started again where its processes were killed
_LAST_WORDS = 1.0  # seconds


class Owner(Protocol):
    def drop(self, reason: str) -> None:
        """The samples cannot be kept after all."""

    def expect_audit(self) -> None:
        """A table has come to its end."""


class Filler:
    """
    Args:
        opened: what the tried samples were read from.
        seconds_each: that fetching a sample takes, where forked processes may do it as well; else 0.
        besides: files in this folder do not count as the data set's: our own.
        owner: of the table; whom this one does not keep alive.

    Attributes:
        joined: whether another process has begun the table, whose idle cores fill it.
        opened: notes what is opened while the program fetches samples here.
        unseen: samples came from the program's workers, whose files we could not see.
    """

    def __init__(
        self,
        source: Source,
        table: Table,
        unchanged: Unchanged,
        partial: PartialTable | None,
        besides: str,
        opened: Collection[str],
        seconds_each: float,
        owner: Owner,
    ) -> None:
        self.opened = Opened()
        self.unseen = False
        self.joined = partial is not None and partial.joined
        self._source = source
        self._table = table
        self._unchanged = unchanged
        self._partial = partial
        self._besides = besides
        self._files_known = not unchanged.seen.files.uncovered(set(opened))
        self._seconds_each = seconds_each
        self._owner = owner
        self._filling: Filling | None = None
        self._fillings = 0
        self._fill_seconds = 0.0  # spent on filling it at once
        self._opened_elsewhere = set(opened)  # in the trial, to begin with
        self._began = time.perf_counter()

    def opened_so_far(self) -> set[str]:
        return self.opened.paths() | self._opened_elsewhere

    def go_on(self, before: Filler) -> None:
        """In the place of this one, which has ended what it did beside the program."""
        self._partial, before._partial = before._partial, None
        self.joined = self._partial is not None and self._partial.joined
        self._opened_elsewhere = before.opened_so_far()
        self.unseen = before.unseen

    def fill(self, in_forks: bool) -> None:
        """Fetch all that is missing now. What cannot be fetched stays missing.

        Raises:
            Unfit: the samples turned out to be unfit.
        """
        if not self._table.writable or self.joined:
            return
        began = time.perf_counter()
        try:
            if in_forks:
                self._read_elsewhere(fill(self._table, self._source, self._unchanged.in_fork))
            elif not self._source.workers:
                fill_here(self._table, self._source, self.opened)
        except ForkFailed:
            if not self._source.workers:
                fill_here(self._table, self._source, self.opened)
        self._fill_seconds = time.perf_counter() - began
        log.info("%d samples kept in %.1f s", self._table.count - self._table.missing, self._fill_seconds)
        self.finish_if_complete()

    def fill_leftovers(self) -> None:
        """What an epoch left over (drop_last, or draws with replacement), where that takes no time to speak of.

        Raises:
            Unfit: as `fill`.
        """
        few = 0 < 2 * self._table.missing <= self._table.count and not self.beside
        if few and 0 < self._seconds_each * self._table.missing < WORTH_FILLING_BESIDE:
            self.fill(in_forks=True)

    def fill_beside(self, coming: Callable[[], Iterable[int]] | None) -> Filling | None:
        """Let idle cores fetch what is missing from now on, if that is worth the time of a fork.

        Args:
            coming: see `Filling`.
        """
        seconds = self._seconds_each * self._table.missing
        if self._filling is not None or seconds < WORTH_FILLING_BESIDE or not self._table.writable:
            return None
        if self.joined or self._fillings >= _MOST_FILLINGS:
            return None
        self._fillings += 1
        if not may_fork():
            return None
        try:
            self._filling = Filling(self._table, self._source, self._unchanged.in_fork, coming, math.ceil(seconds))
        except Unfit as error:
            log.info("samples are not fetched beside the program: %s", error)
        return self._filling

    @property
    def beside(self) -> bool:
        """Whether other processes are filling it now, started here."""
        return self._filling is not None

    def look(self) -> None:
        """Take in what the processes that fill it beside the program have done, for each batch."""
        if self._filling is None:
            return
        try:
            self._filling.look()
        except Unfit as error:
            return self._owner.drop(str(error))
        self._table.count_present()
        if not self._filling.going:
            self.end_beside()
            self.finish_if_complete()

    def end_beside(self) -> None:
        if self._filling is not None:
            filling, self._filling = self._filling, None
            filling.end()
            self._read_elsewhere(filling.opened)
            self.unseen |= filling.unseen

    def _read_elsewhere(self, paths: set[str]) -> None:
        self._opened_elsewhere |= paths
        self._unchanged.count(paths)

    def count_present(self) -> None:
        """Rows were written by other hands."""
        if self._partial is not None:
            self._table.count_present()
            self.finish_if_complete()

    def finish_if_complete(self) -> None:
        """Write it into its place on disk, if it is to be there and nothing has changed meanwhile."""
        if self._table.complete and self._partial is not None and self._filling is None:
            self._finish()

    def _finish(self) -> None:
        partial, self._partial = self._partial, None
        if partial is None:
            return
        self._owner.expect_audit()
        if self.unseen and not self._files_known:
            return partial.abandon()
        now = fingerprint(*self._source.roots, besides=self._besides)
        if now.digest != self._unchanged.seen.digest:
            self._partial = partial
            return self._owner.drop("the data set, or a file of it, was changed while its samples were read")
        opened = self._unchanged.seen.files.uncovered(self.opened_so_far())
        partial.finish(opened, self._fill_seconds or time.perf_counter() - self._began)

    def close(self) -> None:
        """The session ends: keep what is there, for a later one to go on with if it is not all."""
        if self._partial is None:
            return
        self._table.count_present()
        if self._table.complete:
            self._wait_for_fillers()
        if self._partial is not None and (self._table.missing < self._table.count or self._partial.shared):
            self.end_beside()
            self._finish()

    def _wait_for_fillers(self) -> None:
        """All is there; they only have to say which files they have read."""
        limit = time.monotonic() + _LAST_WORDS
        while self._filling is not None and time.monotonic() < limit:
            self.look()
            time.sleep(0.005)

    def abandon(self) -> None:
        """Keep nothing of what is half written."""
        self.end_beside()
        if self._partial is not None:
            self._partial.abandon()
            self._partial = None
