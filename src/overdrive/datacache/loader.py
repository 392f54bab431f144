"""Serves cached samples through torch's own iterators, which consume all random numbers as before."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import Any, Protocol

from overdrive.datacache.buffers import Buffers
from overdrive.datacache.cached_dataset import CachedDataset
from overdrive.datacache.fill import Filling
from overdrive.datacache.layout import Unfit
from overdrive.datacache.single import SingleSource
from overdrive.datacache.table import Rows


def serve(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    """Open the loader; `call` gives torch's iterator.

    While nobody has `wanted` it, an iterator of this process fetches for itself; one that is here instead of workers
    goes on: there are none that could fetch.
    """
    kept.settle()
    if loader.num_workers == 0:
        return _without_workers(kept, loader, call, wanted)
    if kept.table.writable and 0 < 2 * kept.table.missing <= kept.table.count:
        # What one epoch left over: drop_last, or draws with replacement.
        try:
            kept.fill(in_forks=True)
        except Unfit as error:
            kept.drop(str(error))
    if kept.table.complete and kept.dropped is None:
        return _instead_of_workers(kept, loader, call)
    return _recording(kept, loader, call, wanted)


class Early(Protocol):
    """Gathers batches before the program asks for them."""

    def batch(self, rows: Rows) -> Any: ...


class _Fetcher:
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
        self._kept = kept
        self._buffers = buffers
        self._real = real
        self._live = live  # whether the program sees changes to its data set at once, having no workers
        self._wanted = wanted
        self._coming = coming
        self._filling: Filling | None = None
        self.ahead: Early | None = None  # gathers the next batches meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def fetch(self, indices: Any) -> Any:
        kept = self._kept
        rows = absent = None
        try:
            rows = self._rows(indices)
            if rows is not None:
                absent = self._absent(rows)
                if not len(absent):
                    if self.ahead is not None:
                        return self.ahead.batch(rows)
                    return kept.table.gather(rows, buffers=self._buffers)
        except Exception as error:  # ours: the program must not meet it
            kept.drop(f"{type(error).__name__}: {error}")
        if kept.dropped is not None or rows is None or absent is None:
            return self._real.fetch(indices)
        return kept.fetch_rest(self._real, indices, rows, absent)

    def _rows(self, indices: Any) -> Rows | None:
        """The rows of a batch; None where the program has to fetch it for itself."""
        kept = self._kept
        if not self._wanted():
            return None
        if kept.filling:
            kept.look_after_filling()
        if kept.dropped is not None or (self._live and kept.touched() and kept.changed()):
            return None
        rows = kept.rows(indices)
        if rows is None and kept.source.share is None:
            kept.drop("its sampler gives other things than lists of whole numbers")
        return rows

    def _absent(self, rows: Rows) -> Rows:
        """The rows that are not there yet."""
        absent = self._kept.table.absent(rows)
        if self._live and not self._kept.table.complete:
            self._let_others_fill(len(rows), bool(len(absent)))
        return absent

    def _let_others_fill(self, samples: int, missed: bool) -> None:
        """Let idle cores fetch, in the first epoch, what this iterator will want."""
        if self._filling is not None and self._filling.going:
            self._filling.taken(samples, missed)
        elif missed:
            self._filling = self._kept.fill_beside(self._coming)


class _OneByOne(_Fetcher):
    """Gives the program's own collate function its samples: read from what is kept, and fetched where they are not."""

    def fetch(self, indices: Any) -> Any:
        samples = self._samples(indices)
        return self._real.fetch(indices) if samples is None else self._real.collate_fn(samples)

    def _samples(self, indices: Any) -> list[Any] | None:
        kept = self._kept
        assert isinstance(kept.source, SingleSource)
        try:
            rows = self._rows(indices)
            return None if rows is None else kept.samples(kept.source, rows, self._absent(rows))
        except Exception as error:  # ours: the program must not meet it
            kept.drop(f"{type(error).__name__}: {error}")
            return None


def _buffers_for(iterator: Any) -> Buffers:
    """Memory for the batches of torch's iterator of one process: pinned, where it would pin them itself."""
    return Buffers(pinned=bool(getattr(iterator, "_pin_memory", False)))


def kept_by(iterator: Any) -> CachedDataset | None:
    """What this iterator gathers its batches from; None where it fetches each sample, or makes more of what is kept."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    return fetcher._kept if type(fetcher) is _Fetcher else None


def is_served(iterator: Any) -> bool:
    """Whether its batches come from kept samples, as they are or with more done to them."""
    return isinstance(getattr(iterator, "_dataset_fetcher", None), _Fetcher)


def stays_served(loader: Any) -> bool:
    """Whether it goes on with an iterator of ours in each epoch, in the place of workers that live on or with them."""
    return is_served(loader._iterator) or isinstance(loader._iterator, _recording_iterator())


def release(loader: Any) -> None:
    """Let the loader make its own iterator again, where it has kept one of ours."""
    iterator = loader._iterator
    if is_served(iterator):
        loader._iterator = None
    elif isinstance(iterator, _recording_iterator()):
        iterator.__class__ = _recording_iterator().__base__
        iterator._index_sampler = iterator._index_sampler.sampler


def _without_workers(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    iterator = call()
    real = getattr(iterator, "_dataset_fetcher", None)
    if real is not None and not isinstance(real, _Fetcher):
        kind = _OneByOne if isinstance(kept.source, SingleSource) else _Fetcher
        coming, buffers = _coming(loader, iterator), _buffers_for(iterator)
        iterator._dataset_fetcher = kind(kept, real, True, wanted, coming=coming, buffers=buffers)
    return iterator


def draws_as_torch(loader: Any) -> bool:
    """Whether the loader's indices are drawn by torch's own samplers."""
    batches = loader.batch_sampler
    own = [type(each).__module__.startswith("torch.utils.data.") for each in (batches, loader.sampler)]
    return all(own) and getattr(batches, "sampler", None) is loader.sampler


def _coming(loader: Any, iterator: Any) -> Callable[[], Iterable[int]] | None:
    """The indices that the iterator will draw, for a forked process to find out by drawing them from its copy.

    For torch's own samplers only: another one may write to files or to memory that forked processes share.
    """
    if not draws_as_torch(loader):
        return None
    drawn = iterator._sampler_iter
    return lambda: chain.from_iterable(drawn)


def _instead_of_workers(kept: CachedDataset, loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator of this process in the place of one with workers: reading from memory needs none."""
    ahead = (loader.prefetch_factor or 2) * loader.num_workers
    current = loader._iterator if loader.persistent_workers else None
    if current is not None and is_served(current):
        current._reset(loader)  # as torch does; it draws no seed again
        current._sampler_iter = Drawn(current._sampler_iter, ahead)
        return current
    with _no_workers(loader):
        if current is None:
            iterator = call()
        else:  # persistent workers drew their seed in an earlier epoch
            generator = _generator_of(loader)
            state = generator.get_state()
            iterator = call()
            generator.set_state(state)
    iterator._dataset_fetcher = _Fetcher(kept, iterator._dataset_fetcher, live=False, buffers=_buffers_for(iterator))
    iterator._sampler_iter = Drawn(iterator._sampler_iter, ahead)
    if loader.persistent_workers:
        loader._iterator = iterator  # its workers, if there were some, end
    return iterator


def _generator_of(loader: Any) -> Any:
    import torch

    return loader.generator if loader.generator is not None else torch.default_generator


@contextlib.contextmanager
def _no_workers(loader: Any) -> Iterator[None]:
    space = loader.__dict__  # the loader refuses that some of these are set the usual way
    names = ("num_workers", "persistent_workers", "timeout")
    before = {name: space[name] for name in names}
    space.update(num_workers=0, persistent_workers=False, timeout=0)
    try:
        yield
    finally:
        space.update(before)


class Drawn:
    """Draws indices so many batches early, like a loader that keeps its workers busy.

    The sampler draws from random generators: how early it does so decides on what the program draws.
    """

    def __init__(self, indices: Iterator[Any], ahead: int) -> None:
        self._indices = indices
        self._drawn: deque[Any] = deque()
        for _ in range(ahead):
            self._draw()

    def _draw(self) -> None:
        with contextlib.suppress(StopIteration):
            self._drawn.append(next(self._indices))

    def __iter__(self) -> Drawn:
        return self

    def __next__(self) -> Any:
        if not self._drawn:
            raise StopIteration
        indices = self._drawn.popleft()
        self._draw()
        return indices

    def coming(self, count: int) -> list[Any]:
        """What will be handed out next, this much at most."""
        return list(islice(self._drawn, count))


class _Tap:
    """A batch sampler that notes which indices it hands out."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.handed: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.handed = deque()
        return self._noted(iter(self.sampler), self.handed)

    @staticmethod
    def _noted(indices: Iterator[Any], handed: deque[Any]) -> Iterator[Any]:
        for each in indices:
            handed.append(each)
            yield each

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


@cache
def _recording_iterator() -> Any:
    """torch's iterator with workers, which hands each batch to us as well. A class, because a bound
    function on the instance would be a cycle and keep workers alive until the garbage is collected."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    class Recording(_MultiProcessingDataLoaderIter):
        overdrive_kept: CachedDataset
        overdrive_tap: _Tap
        overdrive_wanted: Callable[[], bool]

        def _next_data(self) -> Any:
            try:
                batch = super()._next_data()  # type: ignore[no-untyped-call]
            except StopIteration:
                raise
            except BaseException:
                self.overdrive_tap.handed.clear()  # from here on, batches and indices may not match
                raise
            indices = self.overdrive_tap.handed.popleft() if self.overdrive_tap.handed else None
            if indices is not None and self.overdrive_wanted():
                self.overdrive_kept.record(indices, batch)
            return batch

    return Recording


def _recording(kept: CachedDataset, loader: Any, call: Callable[[], Any], wanted: Callable[[], bool]) -> Any:
    """torch's own workers, whose batches are kept as they come."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    if loader.persistent_workers and isinstance(loader._iterator, _recording_iterator()):
        return call()
    space = loader.__dict__
    sampler = space["batch_sampler"]
    tap = _Tap(sampler)
    space["batch_sampler"] = tap
    try:
        iterator = call()
    finally:
        space["batch_sampler"] = sampler
    if type(iterator) is _MultiProcessingDataLoaderIter:
        iterator.__class__ = _recording_iterator()
        vars(iterator).update(overdrive_kept=kept, overdrive_tap=tap, overdrive_wanted=wanted)
    return iterator
