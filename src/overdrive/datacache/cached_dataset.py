"""The samples of one data set as this process keeps them: table, watch, and what is written to disk."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from overdrive.core.progress import log
from overdrive.core.rng import States
from overdrive.datacache.audit import Audit
from overdrive.datacache.fill import Filling, fill, fill_here
from overdrive.datacache.fingerprint import Fingerprint, fingerprint
from overdrive.datacache.forked import may_fork
from overdrive.datacache.layout import ForkFailed, Unfit
from overdrive.datacache.opened import Opened
from overdrive.datacache.partial_table import PartialTable
from overdrive.datacache.remade import RemadeSamples, some_of
from overdrive.datacache.single import SingleSource
from overdrive.datacache.source import Source
from overdrive.datacache.spoken import Spoken
from overdrive.datacache.switch import Switch
from overdrive.datacache.table import Rows, Table
from overdrive.datacache.unchanged import Unchanged, UnchangedInFork

# Seconds of fetching that are left, from which on forks are worth it: one takes 5 to 50 ms.
WORTH_FILLING_BESIDE = 0.5
_MOST_FILLINGS = 3  # attempts: a fill is started again where its processes were killed
_LAST_WORDS = 1.0  # seconds


class CachedDataset:
    """A table that replaces a source until the source changes.

    Attributes:
        dropped: why it does not any more; None while it does.
        audit: makes samples again now and then; None where nobody asks for that.
        as_in_forks: whether samples come out here as they do in forked processes; None: not known.
        joined: whether another process has begun the table, whose idle cores fill it.
    """

    def __init__(
        self,
        source: Source,
        seen: Fingerprint,
        table: Table,
        partial: PartialTable | None = None,
        besides: str = "",
        opened: Collection[str] = (),
        seconds_each: float = 0.0,
        key: str = "",
        as_in_forks: bool | None = None,
        settles: bool = False,
    ) -> None:
        """
        Args:
            opened: what the tried samples were read from.
            seconds_each: that fetching a sample takes, where forked processes may do it as well; else 0.
            key: under which the table is stored, or is being written, here or by another process.
            settles: whether a worker's first fetch changes the data set: it opens a file, say.
        """
        self.source = source
        self.table = table
        self.key = key
        self.dropped: str | None = None
        self.settles = settles
        self.only_reads = Switch()  # the program's workers, whose batches are kept
        self.valid = Switch()  # off once it is dropped: for processes that were forked before
        self.audit: Audit | None = None
        self.as_in_forks = as_in_forks
        self._fill_seconds = 0.0  # spent on filling it at once
        self._unchanged = Unchanged(source.roots, seen, opened)
        self._partial = partial
        self.joined = partial is not None and partial.joined
        self._besides = besides  # files here do not count as the data set's: our own
        self._files_known = not seen.files.uncovered(set(opened))
        self._seconds_each = seconds_each
        self._filling: Filling | None = None
        self._fillings = 0
        self._opened = Opened()
        self._opened_elsewhere: set[str] = set()
        self._known: set[str] | None = None  # files that are watched, as a worker knows them
        self._unseen = False  # samples came from the program's workers, whose files we could not see
        self._began = time.perf_counter()

    def renewed(self, source: Source, seen: Fingerprint) -> CachedDataset:
        """The same complete table for an equal data set, which goes on in the place of this one."""
        self._end_filling()
        opened = self._opened.paths() | self._opened_elsewhere
        how = (self.table, self._partial, self._besides, opened, 0.0, self.key, self.as_in_forks)
        kept = CachedDataset(source, seen, *how)
        kept.audit = self.audit
        kept._opened_elsewhere = opened
        kept._unseen = self._unseen
        self._partial = None
        return kept

    @property
    def digest(self) -> str | None:
        """None where the same digest may belong to another data set."""
        seen = self._unchanged.seen
        return None if seen.hidden else seen.digest

    @property
    def seconds_a_look(self) -> float:
        """What it takes to see whether the data set was changed."""
        return self._unchanged.seconds

    def rows(self, indices: Any) -> Rows | None:
        """See `Source.rows`."""
        return self.source.rows(self.table, indices)

    def files_as_before(self) -> bool:
        return self._unchanged.written() is None

    def in_fork(self) -> UnchangedInFork:
        """See `Unchanged.in_fork`."""
        return self._unchanged.in_fork()

    def changed_for_workers(self) -> str | None:
        """See `Unchanged.changed_for_workers`."""
        return self._unchanged.changed_for_workers()

    def touched(self) -> bool:
        """Quick enough for every sample; may be a false alarm."""
        return self._unchanged.touched()

    def changed(self) -> bool:
        """Whether the data set is another one than it was; for every batch. Drops the table if so."""
        alarms = self._unchanged.false_alarms
        reason = self._unchanged.changed()
        if reason:
            self.drop(reason)
        elif self._unchanged.false_alarms != alarms:
            self.expect_audit()
        return self.dropped is not None

    def have_audited(self, rows: Rows | None = None, batch: Any = None) -> None:
        """Have some samples made again, if it is time: what the data set is now is what they are served for.

        Args:
            rows: that are served now.
            batch: of these, as the program gets it; None where it gets them in another way.
        """
        if self.audit is None or self.as_in_forks is False or not (seconds := self.audit.allowance()):
            return
        served = some_of(batch, rows, self.table) if rows is not None and batch is not None else {}
        first = list(served) if served or rows is None else rows.tolist()
        remade = RemadeSamples(self.source, self.table, served, bool(self.as_in_forks))
        self.audit.begin(remade, first, seconds, opening=rows is None)

    def expect_audit(self) -> None:
        """Something happened, an epoch began: have samples made again soon."""
        if self.audit is not None:
            self.audit.expects = True

    def drop(self, reason: str) -> None:
        """Serve no more from it, and keep nothing of what is half written."""
        if self.dropped is None:
            self.dropped = reason
            self.valid.off()
            log.info("samples are fetched anew: %s", reason)
            self._abandon()

    def close(self) -> None:
        """The session ends."""
        if self.dropped is None and self._partial is not None:
            self.table.count_present()
            if self.table.complete:
                self._wait_for_fillers()
            if self._partial is not None and (self.table.complete or self._partial.shared):
                self._end_filling()
                self._finish()
        self.dropped = self.dropped or "the session has ended"
        self._abandon()

    def _abandon(self) -> None:
        self._end_filling()
        if self._partial is not None:
            self._partial.abandon()
            self._partial = None

    def fill(self, in_forks: bool) -> None:
        """Fetch all that is missing now. What cannot be fetched stays missing.

        Raises:
            Unfit: the samples turned out to be unfit.
        """
        if not self.table.writable or self.joined:
            return
        began = time.perf_counter()
        try:
            if in_forks:
                self._read_elsewhere(fill(self.table, self.source, self._unchanged.in_fork).opened)
            elif not self.source.workers:
                fill_here(self.table, self.source, self._opened)
        except ForkFailed:
            if not self.source.workers:
                fill_here(self.table, self.source, self._opened)
        self._fill_seconds = time.perf_counter() - began
        log.info("%d samples kept in %.1f s", self.table.count - self.table.missing, self._fill_seconds)
        self.finish_if_complete()

    def fill_leftovers(self) -> None:
        """What an epoch left over (drop_last, or draws with replacement), where that takes no time to speak of.

        Raises:
            Unfit: as `fill`.
        """
        few = 0 < 2 * self.table.missing <= self.table.count and not self.filling
        if few and 0 < self._seconds_each * self.table.missing < WORTH_FILLING_BESIDE:
            self.fill(in_forks=True)

    def fill_beside(self, coming: Callable[[], Iterable[int]] | None) -> Filling | None:
        """Let idle cores fetch what is missing from now on, if that is worth the time of a fork.

        Args:
            coming: see `Filling`.
        """
        seconds = self._seconds_each * self.table.missing
        if self._filling is not None or seconds < WORTH_FILLING_BESIDE or not self.table.writable:
            return None
        if self.joined or self._fillings >= _MOST_FILLINGS:
            return None
        self._fillings += 1
        if not may_fork():
            return None
        try:
            self._filling = Filling(self.table, self.source, self._unchanged.in_fork, coming, math.ceil(seconds))
        except Unfit as error:
            log.info("samples are not fetched beside the program: %s", error)
        return self._filling

    @property
    def filling(self) -> bool:
        """Whether other processes are filling it now, started here."""
        return self._filling is not None

    def look_after_filling(self) -> None:
        """Take in what the processes that fill it beside the program have done, for each batch."""
        if self._filling is None:
            return
        try:
            self._filling.look()
        except Unfit as error:
            return self.drop(str(error))
        self.table.count_present()
        if not self._filling.going:
            self._end_filling()
            self.finish_if_complete()

    def _end_filling(self) -> None:
        if self._filling is not None:
            filling, self._filling = self._filling, None
            filling.end()
            self._read_elsewhere(filling.opened)
            self._unseen |= filling.unseen

    def _read_elsewhere(self, paths: set[str]) -> None:
        self._opened_elsewhere |= paths
        self._unchanged.count(paths)

    def _wait_for_fillers(self) -> None:
        """All is there; they only have to say which files they have read."""
        limit = time.monotonic() + _LAST_WORDS
        while self._filling is not None and time.monotonic() < limit:
            self.look_after_filling()
            time.sleep(0.005)

    def settle(self) -> None:
        """A loader opens: others may have filled what was missing."""
        if self.dropped is not None:
            return
        self.expect_audit()
        if self._partial is not None:
            self.table.count_present()
            self.finish_if_complete()

    def finish_if_complete(self) -> None:
        """Write it into its place on disk, if it is to be there and nothing has changed meanwhile."""
        if self.table.complete and self._partial is not None and self._filling is None:
            self._finish()

    def _finish(self) -> None:
        partial, self._partial = self._partial, None
        if partial is None:
            return
        self.expect_audit()
        if self._unseen and not self._files_known:
            return partial.abandon()
        now = fingerprint(*self.source.roots, besides=self._besides)
        if now.digest != self._unchanged.seen.digest:
            self._partial = partial
            self.drop("the data set, or a file of it, was changed while its samples were read")
            return
        opened = self._unchanged.seen.files.uncovered(self._opened.paths() | self._opened_elsewhere)
        partial.finish(opened, self._fill_seconds or time.perf_counter() - self._began)

    def count_others(self) -> None:
        """Rows were written by other hands: this process's data set, or its workers."""
        if self.dropped is None and not self.table.complete:
            self._unseen = True
            self.table.count_present()
            self.finish_if_complete()

    def record(self, indices: Any, batch: Any) -> None:
        """Take in a batch that the program's own workers fetched."""
        if self.dropped is not None or self.table.complete:
            return
        try:
            if not self.only_reads:
                return self.drop("fetching a sample does more than read, or reads what is not watched")
            rows = self.rows(indices)
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

    def fetch_real(self, fetcher: Any, indices: list[int], rows: Rows) -> Any:
        """A batch of which some samples are not there yet: all are fetched for real, and kept.

        All, because one of them may change what the others are, rarely, and the program would see that.
        """
        before = States.now()
        with self.watched() as did:
            batch = fetcher.fetch(indices)
        try:
            if not before.same(States.now()):
                self.drop("fetching a sample draws random numbers")
            elif did():
                self.drop(did())
            elif self._take(rows, batch):
                self.finish_if_complete()
        except Exception as error:  # ours: the program must not meet it
            self.drop(f"{type(error).__name__}: {error}")
        return batch

    @contextlib.contextmanager
    def heard(self) -> Iterator[Callable[[], str]]:
        """For a fetch in one of the program's workers. Gives what tells, after it, what it did besides reading what
        is watched."""
        spoken = Spoken(self._unchanged.seen.may_speak)
        with self._opened, spoken:
            yield lambda: self._did(spoken) or self._read_unwatched()

    def _read_unwatched(self) -> str:
        unknown = self._opened.fresh() - self._watched_files()
        return f"it reads {unknown.pop()}, which is not watched" if unknown else ""

    def _watched_files(self) -> set[str]:
        if self._known is None:
            self._known = self._unchanged.files()
        return self._known

    @contextlib.contextmanager
    def watched(self) -> Iterator[Callable[[], str]]:
        """For a real fetch of the program's, here. Gives what tells, after it, what it did besides reading.

        What it read from is to stay as it is from then on.
        """
        spoken = Spoken(self._unchanged.seen.may_speak)
        try:
            with self._opened, spoken:
                yield lambda: self._did(spoken)
        finally:
            with contextlib.suppress(OSError):
                self._unchanged.count(self._opened.fresh())

    def _did(self, spoken: Spoken) -> str:
        did = self._opened.effect or ("prints, or writes to a file that is open" if spoken.heard else "")
        return did and f"fetching a sample does more than read: it {did}"

    def samples(self, source: SingleSource, rows: Rows, absent: Rows) -> list[Any] | None:
        """The samples of a batch, one by one; all are fetched for real, and kept, where one is not there yet.

        None where the program has to fetch them all for itself, with all random generators as they were.
        """
        if not len(absent):
            return [source.unpack(self.table.row(row)) for row in rows.tolist()]
        before = States.now()
        try:
            with self.watched() as did:
                samples = [source.sample(row) for row in rows.tolist()]
        except Exception:  # its own error comes again when it fetches for itself
            before.restore()
            return None
        if not before.same(States.now()):
            self.drop("fetching a sample draws random numbers")
        elif did():
            self.drop(did())
        else:
            missing = set(absent.tolist())
            for row, sample in zip(rows.tolist(), samples, strict=True):
                with contextlib.suppress(Unfit):  # of another kind than those that were tried: it is not kept
                    if row in missing:
                        self.table.put(row, source.pack(sample))
            self.table.count_present()
            self.finish_if_complete()
        return samples
