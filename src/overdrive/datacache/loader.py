"""Serves cached samples through torch's own iterators, which consume all random numbers as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Protocol

from overdrive.datacache.buffers import Buffers
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.fill import Filling
from overdrive.datacache.reading_worker import Telling
from overdrive.datacache.single import SingleSource
from overdrive.datacache.table import Rows
from overdrive.forks.layout import Unfit
from overdrive.seams.torch import drawn_indices, fetchers, fetches, heard_iterators, idle_workers, iterators
from overdrive.seams.torch.idle_workers import IdleWorkers


def serve(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    """Open the loader; `call` gives torch's iterator.

    While nobody has `wanted` it, an iterator of this process fetches for itself; one that is here instead of workers
    goes on: there are none that could fetch.
    """
    kept.settle()
    if iterators.workers_of_program(loader) == 0:
        try:
            kept.filler.fill_leftovers()
        except Unfit as error:
            kept.drop(str(error))
        return _without_workers(kept, loader, call, wanted)
    if kept.table.writable and 0 < 2 * kept.table.missing <= kept.table.count and _workers_have(kept, loader):
        # What one epoch left over: drop_last, or draws with replacement.
        try:
            kept.filler.fill(in_forks=True)
        except Unfit as error:
            kept.drop(str(error))
    if kept.dropped is None and (reason := kept.changed_for_workers()):
        kept.drop(reason)
    if kept.dropped is not None:
        release(loader)
        return call()
    if kept.table.complete:
        return _instead_of_workers(kept, loader, call)
    return _recording(kept, loader, call, wanted)


def _workers_have(kept: CachedDataset, loader: Any) -> bool:
    """Whether the loader's workers have the data set as it is now: those that live on have it as it was."""
    began_before = iterators.lasts_for_program(loader) and iterators.kept_open(loader) is not None
    return not began_before or kept.as_seen()


class EarlyBatches(Protocol):
    """Gathers batches before the program asks for them."""

    def batch(self, rows: Rows) -> Any: ...


class _Fetcher(fetchers.Fetcher):
    """Replaces torch's fetcher in one iterator: gathers what is cached, fetches what is not."""

    def __init__(
        self,
        kept: CachedDataset,
        real: Any,
        live: bool,
        wanted: Callable[[], bool] = lambda: True,
        coming: Callable[[], Iterable[int]] | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        super().__init__(real)
        self.kept = kept
        self._buffers = buffers
        self._live = live  # whether the program sees changes to its data set at once, having no workers
        self._wanted = wanted
        self._coming = coming
        self._filling: Filling | None = None
        self.ahead: EarlyBatches | None = None  # gathers the next batches meanwhile

    def fetch(self, indices: Any) -> Any:
        kept = self.kept
        rows = absent = None
        try:
            rows = self._rows(indices)
            if rows is not None:
                absent = self._absent(rows)
                if not len(absent):
                    batch = (
                        self.ahead.batch(rows)
                        if self.ahead is not None
                        else kept.table.gather(rows, buffers=self._buffers)
                    )
                    if self._live:
                        kept.have_audited(rows, batch)
                    return batch
        except Exception as error:  # ours: the program must not meet it
            kept.drop(f"{type(error).__name__}: {error}")
        if kept.dropped is not None or rows is None or absent is None:
            return self.real.fetch(indices)
        return kept.fetch_real(self.real, indices, rows)

    def _rows(self, indices: Any) -> Rows | None:
        """The rows of a batch; None where the program has to fetch it for itself."""
        kept = self.kept
        if not self._wanted():
            return None
        if kept.filler.beside:
            kept.filler.look()
        if kept.audit is not None:
            kept.audit.look()
        if kept.dropped is not None or (self._live and kept.changed()):
            return None
        rows = kept.rows(indices)
        if rows is None and kept.source.share is None:
            kept.drop("its sampler gives other things than lists of whole numbers")
        return rows

    def _absent(self, rows: Rows) -> Rows:
        """The rows that are not there yet."""
        absent = self.kept.table.absent(rows)
        if self._live and not self.kept.table.complete:
            self._let_others_fill(len(rows), bool(len(absent)))
        return absent

    def _let_others_fill(self, samples: int, missed: bool) -> None:
        """Let idle cores fetch, in the first epoch, what this iterator will want."""
        if self._filling is not None and self._filling.going:
            self._filling.taken(samples, missed)
        elif missed:
            self._filling = self.kept.filler.fill_beside(self._coming)


class _InPlaceOfWorkers(_Fetcher):
    """What the program's workers would make: of the data set as it was when they began, of files as they are now.

    From the first change of a file on they make the batches themselves, but those that they would have made by then.

    Args:
        workers: that have begun; None where they begin anew in each epoch: then they do when they are needed.
        ahead: batches that they would have made before they are asked for.
        seeded_by: the state of the loader's generator before it drew their seed.
    """

    def __init__(
        self,
        kept: CachedDataset,
        real: Any,
        loader: Any,
        workers: IdleWorkers | None,
        ahead: int,
        seeded_by: Any,
        buffers: Buffers,
    ) -> None:
        super().__init__(kept, real, live=False, buffers=buffers)
        self.workers = workers
        self._loader = loader if workers is None else None  # a loader that keeps its workers keeps this, too
        self._seeded_by = seeded_by
        self._handed_over = 0
        self._ahead = ahead
        self._under_way = 0

    def _rows(self, indices: Any) -> Rows | None:
        kept = self.kept
        if kept.dropped is None and (reason := kept.changed_for_workers()):
            kept.drop(reason)
            self._under_way = self._ahead
        if kept.dropped is not None and self._under_way:
            self._under_way -= 1
            self._handed_over += 1
            return kept.rows(indices)
        rows = super()._rows(indices)
        self._handed_over += rows is not None
        return rows

    def _really(self, indices: Any) -> Any:
        if self.workers is None:
            how = {"seeded_by": self._seeded_by, "handed_over": self._handed_over}
            self.workers = idle_workers.workers_that_wait(self._loader, **how)
        return self.workers.fetch(indices)


class _OneByOne(_Fetcher):
    """Gives the program's own collate function its samples: read from what is kept, and fetched where they are not."""

    def fetch(self, indices: Any) -> Any:
        samples = self._samples(indices)
        if samples is None:
            return self.real.fetch(indices)
        with fetches.noted():
            return self.real.collate_fn(samples)

    def _samples(self, indices: Any) -> list[Any] | None:
        kept = self.kept
        assert isinstance(kept.source, SingleSource)
        try:
            rows = self._rows(indices)
            if rows is None:
                return None
            absent = self._absent(rows)
            samples = kept.samples(kept.source, rows, absent)
            if not len(absent):
                kept.have_audited(rows)
            return samples
        except Exception as error:  # ours: the program must not meet it
            kept.drop(f"{type(error).__name__}: {error}")
            return None


def kept_by(iterator: Any) -> CachedDataset | None:
    """What this iterator gathers its batches from; None where it fetches each sample, or makes more of what is kept."""
    fetcher = fetchers.fetcher_of(iterator)
    return fetcher.kept if type(fetcher) in (_Fetcher, _InPlaceOfWorkers) else None


def is_served(iterator: Any) -> bool:
    """Whether its batches come from kept samples, as they are or with more done to them."""
    return isinstance(fetchers.fetcher_of(iterator), _Fetcher)


def stays_served(loader: Any) -> bool:
    """Whether it goes on with an iterator of ours in each epoch, in the place of workers that live on or with them."""
    current = iterators.kept_open(loader)
    return is_served(current) or heard_iterators.is_heard(current)


def release(loader: Any) -> None:
    """Let the loader make its own iterator again, where it has kept one of ours."""
    current = iterators.kept_open(loader)
    if isinstance(fetcher := fetchers.fetcher_of(current), _InPlaceOfWorkers) and fetcher.workers is not None:
        idle_workers.give_back(loader, fetcher.workers)
    elif is_served(current):
        iterators.let_open_anew(loader)
    elif heard_iterators.is_heard(current):
        heard_iterators.hear_no_more(current)


def gather_early(iterator: Any, early: EarlyBatches | None) -> None:
    """Let `early` give the batches of an iterator that gathers what is kept (see `kept_by`)."""
    fetchers.fetcher_of(iterator).ahead = early


def _without_workers(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    iterator = iterators.open_alone(loader, call) if kept.dropped is None and wanted() else call()
    real = fetchers.fetcher_of(iterator)
    if real is not None and not isinstance(real, _Fetcher):
        kind = _OneByOne if isinstance(kept.source, SingleSource) else _Fetcher
        coming, buffers = _coming(loader, iterator), Buffers(iterators.pins(iterator))
        fetchers.fetch_by(iterator, kind(kept, real, True, wanted, coming=coming, buffers=buffers))
    return iterator


def _coming(loader: Any, iterator: Any) -> Callable[[], Iterable[int]] | None:
    """The indices that the iterator will draw, for a forked process to find out by drawing them from its copy.

    For torch's own samplers only: another one may write to files or to memory that forked processes share.
    """
    if not drawn_indices.draws_as_torch(loader):
        return None
    drawn = drawn_indices.indices_of(iterator)
    return lambda: chain.from_iterable(drawn)


def _instead_of_workers(kept: CachedDataset, loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator of this process in the place of one with workers: reading from memory needs none.

    Those that the program keeps from epoch to epoch hold its data set as it was: they wait, should they be needed.
    """
    ahead = (loader.prefetch_factor or 2) * iterators.workers_of_program(loader)
    lasts = iterators.lasts_for_program(loader)
    current = iterators.kept_open(loader) if lasts else None
    if current is not None and is_served(current):
        iterators.begin_again(current, loader)
        iterator = current
    else:
        workers = idle_workers.workers_that_wait(loader) if lasts else None
        state = idle_workers.generator_of(loader).get_state()
        if workers is not None:
            idle_workers.give_back(loader, workers)
        iterator = iterators.open_without_workers(loader, call)
        real, buffers = fetchers.fetcher_of(iterator), Buffers(iterators.pins(iterator))
        fetchers.fetch_by(iterator, _InPlaceOfWorkers(kept, real, loader, workers, ahead, state, buffers))
        if current is None:
            kept.have_audited()  # workers would have begun now, with the data set as it is
    drawn_indices.draw_from(iterator, drawn_indices.Ahead(drawn_indices.indices_of(iterator), ahead))
    return iterator


def _recording(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    """torch's own workers, whose batches are kept as they come."""

    def record(indices: Any, batch: Any) -> None:
        if wanted():
            kept.record(indices, batch)

    telling = Telling(loader.worker_init_fn, kept)
    with iterators.begun_by(loader, telling):
        return heard_iterators.open_heard(loader, call, record)
