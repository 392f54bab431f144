"""The samples of one data set as this process keeps them: what is served, and taken in, while nothing changes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any

from overdrive.changes.called import Called
from overdrive.changes.fingerprint import Fingerprint
from overdrive.changes.spoken import Spoken
from overdrive.core.progress import log
from overdrive.core.rng import States
from overdrive.datacache.audit import Audit
from overdrive.datacache.filler import Filler
from overdrive.datacache.partial_table import PartialTable
from overdrive.datacache.remade import RemadeSamples, some_of
from overdrive.datacache.single import SingleSource
from overdrive.datacache.source import Source
from overdrive.datacache.switch import SharedFlag
from overdrive.datacache.table import Rows, Table
from overdrive.datacache.unchanged import Unchanged, UnchangedInFork, WatchedFiles
from overdrive.forks.layout import Unfit


class CachedDataset:
    """A table that replaces a source until the source changes.

    Attributes:
        dropped: why it does not any more; None while it does.
        audit: makes samples again now and then; None where nobody asks for that.
        as_in_forks: whether samples come out here as they do in forked processes; None: not known.
        filler: of the table.
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
        called: Called | None = None,
    ) -> None:
        """
        Args:
            opened: what the tried samples were read from.
            seconds_each: that fetching a sample takes, where forked processes may do it as well; else 0.
            key: under which the table is stored, or is being written, here or by another process.
            settles: whether a worker's first fetch changes the data set: it opens a file, say.
            called: what the tried samples came to in libraries.
        """
        self.source = source
        self.table = table
        self.key = key
        self.dropped: str | None = None
        self.settles = settles
        self.only_reads = SharedFlag()  # the program's workers, whose batches are kept
        self.valid = SharedFlag()  # off once it is dropped: for processes that were forked before
        self.audit: Audit | None = None
        self.as_in_forks = as_in_forks
        self._called = called
        self._unchanged = Unchanged(source.roots, seen, opened, called)
        self.filler = Filler(
            source, table, self._unchanged, partial, besides, opened, seconds_each, weakref.proxy(self)
        )
        self._opened = self.filler.opened
        self._besides = besides
        self._known: WatchedFiles | None = None  # as a worker knows them

    def renewed(self, source: Source, seen: Fingerprint) -> CachedDataset:
        """The same complete table for an equal data set, which goes on in the place of this one."""
        self.filler.end_beside()
        opened = self.filler.opened_so_far()
        how = (self.table, None, self._besides, opened, 0.0, self.key, self.as_in_forks)
        kept = CachedDataset(source, seen, *how, called=self._called)
        kept.audit = self.audit
        kept.filler.go_on(self.filler)
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

    def serves_equal(self) -> bool:
        """Whether the samples are those of an equal data set, too, that was made since."""
        return self.table.complete and self._unchanged.changed_besides() is None

    def in_fork(self) -> UnchangedInFork:
        """See `Unchanged.in_fork`."""
        return self._unchanged.in_fork()

    def changed_for_workers(self) -> str | None:
        """See `Unchanged.changed_for_workers`."""
        return self._unchanged.changed_for_workers()

    def as_seen(self) -> bool:
        """See `Unchanged.as_seen`."""
        return self._unchanged.as_seen()

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
            self.filler.abandon()

    def close(self) -> None:
        """The session ends."""
        if self.dropped is None:
            self.filler.close()
        self.dropped = self.dropped or "the session has ended"
        self.filler.abandon()

    def settle(self) -> None:
        """A loader opens: others may have filled what was missing."""
        if self.dropped is None:
            self.expect_audit()
            self.filler.count_present()

    def count_others(self) -> None:
        """Rows were written by other hands: this process's data set, or its workers."""
        if self.dropped is None and not self.table.complete:
            self.filler.unseen = True
            self.table.count_present()
            self.filler.finish_if_complete()

    def record(self, indices: Any, batch: Any) -> None:
        """Take in a batch that the program's own workers fetched."""
        if self.dropped is not None or self.table.complete:
            return
        try:
            if not self.only_reads:
                return self.drop("fetching a sample does more than read, or reads what is not watched")
            rows = self.rows(indices)
            self.filler.unseen = True
            if rows is not None and self._take(rows, batch):
                self.filler.finish_if_complete()
        except Exception as error:  # the batch is good all the same
            self.drop(f"{type(error).__name__}: {error}")

    def _take(self, rows: Rows, batch: Any) -> bool:
        try:
            taken, why = self.table.write(rows, batch), "its samples differ in shape or kind"
        except Unfit as error:
            taken, why = False, str(error)
        if not taken:
            self.drop(why)
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
                self.filler.finish_if_complete()
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
        if self._known is None:
            self._known = self._unchanged.watched_files()
        return self._known.read_besides(self._opened.fresh())

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
            self.filler.finish_if_complete()
        return samples
