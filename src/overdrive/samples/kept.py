"""The samples of one data set as this process keeps them: table, watch, and what is written to disk."""

from __future__ import annotations

import time
from typing import Any

from overdrive.samples import log
from overdrive.samples.files import Opened
from overdrive.samples.fill import fill, fill_here
from overdrive.samples.fingerprint import Fingerprint, fingerprint
from overdrive.samples.key import surroundings
from overdrive.samples.layout import ForkFailed
from overdrive.samples.proof import still_true
from overdrive.samples.randomness import States
from overdrive.samples.source import Source
from overdrive.samples.store import Draft
from overdrive.samples.table import Rows, Table

# Fetched again at each opening where changes to the data set might not be seen.
_LOOKED_AT_AGAIN = 4
# Attributes set anew to what they were; each such alarm costs a fingerprint.
_MOST_FALSE_ALARMS = 5


class Kept:
    """A table that stands for a source until the source changes.

    Attributes:
        dropped: why it does not any more; None while it does.
        fill_seconds: time spent on filling it at once, 0 where it was found complete or fills by and by.
    """

    def __init__(
        self,
        source: Source,
        seen: Fingerprint,
        table: Table,
        draft: Draft | None = None,
        besides: str = "",
        files_known: bool = True,
    ) -> None:
        self.source = source
        self.table = table
        self.dropped: str | None = None
        self.fill_seconds = 0.0
        self._seen = seen
        self._draft = draft
        self._besides = besides  # files here do not count as the data set's: our own
        self._files_known = files_known  # the fingerprint covers what the tried samples were read from
        self._surroundings = surroundings()
        self._opened = Opened()
        self._opened_elsewhere: set[str] = set()
        self._unseen = False  # samples came from the program's workers, whose files we could not see
        self._false_alarms = 0
        self._began = time.perf_counter()
        seen.watch.seal()

    @property
    def digest(self) -> str | None:
        """None where the same digest may belong to another data set."""
        return None if self._seen.hidden else self._seen.digest

    def touched(self) -> bool:
        """Quick enough for every batch; may be a false alarm."""
        return self._seen.watch.touched()

    def changed(self) -> bool:
        """Whether the data set is another one than it was. Drops the table if so."""
        if self._surroundings != surroundings():
            self.drop("torch's default dtype was changed")
        elif self._seen.watch.changed():
            seen = fingerprint(*self.source.roots, besides=self._besides)
            self._false_alarms += 1
            if self._false_alarms > _MOST_FALSE_ALARMS:
                self.drop("the data set is written to all the time")
            elif seen.digest == self._seen.digest:
                self._seen = seen
                seen.watch.seal()
            else:
                self.drop("the data set was changed")
        elif self._seen.hidden and self.table.complete and not self._looks_the_same():
            self.drop("the data set was changed")
        return self.dropped is not None

    def _looks_the_same(self) -> bool:
        try:
            return still_true(self.source, self.table, _LOOKED_AT_AGAIN)
        except Exception:
            return False

    def drop(self, reason: str) -> None:
        """Serve no more from it, and keep nothing of what is half written."""
        if self.dropped is None:
            self.dropped = reason
            log.info("samples are fetched anew: %s", reason)
            self._abandon()

    def close(self) -> None:
        """The session ends."""
        self.dropped = self.dropped or "the session has ended"
        self._abandon()

    def _abandon(self) -> None:
        if self._draft is not None:
            self._draft.abandon()
            self._draft = None

    def fill(self, in_forks: bool) -> None:
        """Fetch all that is missing now. What cannot be fetched stays missing.

        Raises:
            Unfit: the samples turned out to be unfit.
        """
        began = time.perf_counter()
        try:
            if in_forks:
                self._opened_elsewhere |= fill(self.table, self.source).opened
            elif not self.source.workers:
                fill_here(self.table, self.source, self._opened)
        except ForkFailed:
            if not self.source.workers:
                fill_here(self.table, self.source, self._opened)
        self.fill_seconds = time.perf_counter() - began
        log.info("%d samples kept in %.1f s", self.table.count - self.table.missing, self.fill_seconds)
        self.finish_if_complete()

    def finish_if_complete(self) -> None:
        """Write it into its place on disk, if it is to be there and nothing has changed meanwhile."""
        if not self.table.complete or self._draft is None:
            return
        if self._unseen and not self._files_known:
            return self._abandon()
        draft, self._draft = self._draft, None
        now = fingerprint(*self.source.roots, besides=self._besides)
        if now.digest != self._seen.digest:
            self._draft = draft
            self.drop("the data set, or a file of it, was changed while its samples were read")
            return
        opened = self._seen.files.uncovered(self._opened.paths() | self._opened_elsewhere)
        draft.finish(opened, self.fill_seconds or time.perf_counter() - self._began)

    def record(self, indices: Any, batch: Any) -> None:
        """Take in a batch that the program's own workers fetched."""
        if self.dropped is not None or self.table.complete:
            return
        try:
            rows = self.table.rows(indices)
            self._unseen = True
            if rows is not None and self._take(rows, batch):
                self.finish_if_complete()
        except Exception as error:  # the batch is good all the same
            self.drop(f"{type(error).__name__}: {error}")

    def _take(self, rows: Rows, batch: Any) -> bool:
        taken = self.table.write(rows, batch)
        if not taken:
            self.drop("its samples differ in shape or kind")
        return taken

    def fetch_rest(self, fetcher: Any, indices: list[int], rows: Rows, absent: Rows) -> Any:
        """A batch of which some samples are not there yet: these are fetched for real, and kept."""
        whole = len(absent) == len(rows)
        before = States.now()
        with self._opened:
            batch = fetcher.fetch(indices if whole else absent.tolist())
        try:
            if not before.same(States.now()):
                self.drop("fetching a sample draws random numbers")
                if not whole:
                    before.restore()
            elif self._take(absent, batch):
                self.finish_if_complete()
                return batch if whole else self.table.gather(rows)
        except Exception as error:  # ours: the program must not meet it
            self.drop(f"{type(error).__name__}: {error}")
        return batch if whole else fetcher.fetch(indices)
