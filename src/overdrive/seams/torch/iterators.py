"""PyTorch's iterators over a `DataLoader`, from inside: who fetches their batches, which indices they draw, what hears
of both. All that techniques change in such an iterator they change here.

An iterator stays PyTorch's own: it draws the same random numbers at the same time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils import pin_memory, worker
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from overdrive.core.progress import log
from overdrive.seams.torch.loader_warnings import warned_as

Heard = Callable[[Any, Any], None]  # told of each batch: the indices that it was made from, and the batch


class Fetcher:
    """Takes the place of PyTorch's own fetcher in an iterator of this process (`fetch_by`)."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def fetch(self, indices: Any) -> Any:
        """The batch of these indices, which is handed to the program (collated, and pinned by the iterator)."""
        return self.real.fetch(indices)


class Announcing(Fetcher):
    """Fetches as the real one does, and tells so before and after each batch."""

    def __init__(self, real: Any, about_to_fetch: Callable[[], None], fetched: Callable[[], None]) -> None:
        super().__init__(real)
        self._about_to_fetch = about_to_fetch
        self._fetched = fetched

    def fetch(self, indices: Any) -> Any:
        self._about_to_fetch()
        try:
            return self.real.fetch(indices)
        finally:
            self._fetched()


def map_fetcher(dataset: Any, collate: Any) -> Any:
    """PyTorch's own, of a map-style data set, a batch at a time."""
    return _MapDatasetFetcher(dataset, True, collate, False)


def fetcher_of(iterator: Any) -> Any:
    """Who fetches its batches; None where that is not PyTorch's iterator of this process."""
    return getattr(iterator, "_dataset_fetcher", None)


def fetch_by(iterator: Any, fetcher: Fetcher) -> None:
    iterator._dataset_fetcher = fetcher


@dataclass(frozen=True)
class Parts:
    """What PyTorch's own iterator fetches from."""

    dataset: Any
    collate: Any
    sampler: Any  # gives the indices of a batch at a time; those of a sample where there are no batches
    workers: int
    prepare_worker: Any  # the loader's worker_init_fn; None without workers
    stream: bool  # the data set has no samples by number
    batches: bool


def parts_of(iterator: Any) -> Parts | None:
    """None where the iterator is not PyTorch's own, or another fetches for it."""
    alone = type(iterator) is _SingleProcessDataLoaderIter
    if not alone and (not isinstance(iterator, _MultiProcessingDataLoaderIter) or is_heard(iterator)):
        return None
    stream = iterator._dataset_kind != _DatasetKind.Map
    if alone and not stream:
        fetcher = iterator._dataset_fetcher
        while type(fetcher) is Announcing:
            fetcher = fetcher.real
        if type(fetcher) is not _MapDatasetFetcher:
            return None
    return Parts(
        iterator._dataset,
        iterator._collate_fn,
        iterator._index_sampler,
        iterator._num_workers,
        None if alone else iterator._worker_init_fn,
        stream,
        iterator._auto_collation,
    )


def is_alone(iterator: Any) -> bool:
    """Whether it is PyTorch's iterator that works in this process, without workers."""
    return type(iterator) in (_SingleProcessDataLoaderIter, _heard_class(_SingleProcessDataLoaderIter))


def pins(iterator: Any) -> bool:
    """Whether it puts its batches into pinned memory."""
    return bool(getattr(iterator, "_pin_memory", False))


def indices_of(iterator: Any) -> Iterator[Any]:
    """What it draws the indices of its batches from."""
    drawn: Iterator[Any] = iterator._sampler_iter
    return drawn


def draw_from(iterator: Any, indices: Iterator[Any]) -> None:
    iterator._sampler_iter = indices


def kept_open(loader: Any) -> Any:
    """The iterator that a loader with persistent workers goes on with; None where there is none yet."""
    return loader._iterator


def makes_its_own(loader: Any) -> bool:
    """Whether its class opens it in another way than PyTorch does."""
    return type(loader)._get_iterator is not DataLoader._get_iterator


def draws_as_torch(loader: Any) -> bool:
    """Whether the loader's indices are drawn by PyTorch's own samplers."""
    batches = loader.batch_sampler
    own = [type(each).__module__.startswith("torch.utils.data.") for each in (batches, loader.sampler)]
    return all(own) and getattr(batches, "sampler", None) is loader.sampler


def draws_unseen_by_workers(loader: Any) -> bool:
    """Whether nobody can tell how early its indices are drawn, but the first: by torch's own samplers, from nobody's
    generator or all at once."""
    if not draws_as_torch(loader):
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return sampler.generator is None
    return type(sampler) in (SequentialSampler, DistributedSampler, WeightedRandomSampler)


def give_workers(loader: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """As `change`: workers that are not the program's, which sees at once what changes in its data set."""
    _given.add(loader)
    return change(loader, attributes)


def take_workers_back(loader: Any, attributes: Mapping[str, Any]) -> None:
    _given.discard(loader)
    change(loader, attributes)


def workers_of_program(loader: Any) -> int:
    """How many workers the program has given the loader."""
    return 0 if loader in _given else int(loader.num_workers)


_given: WeakSet[Any] = WeakSet()


def open_alone(loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator of this process, of a loader to which the program has given no workers, nor anybody else now."""
    space = loader.__dict__
    names = ("num_workers", "prefetch_factor", "persistent_workers")
    before = {name: space[name] for name in names}
    space.update(num_workers=0, prefetch_factor=None, persistent_workers=False)
    try:
        return call()
    finally:
        space.update(before)


def hear(iterator: Any, heard: Heard) -> None:
    """Let `heard` be told of each batch of an iterator of this process (see `is_alone`)."""
    vars(iterator).update(overdrive_heard=heard, overdrive_drawn=deque())
    iterator.__class__ = _heard_class(_SingleProcessDataLoaderIter)


def is_heard(iterator: Any) -> bool:
    return "overdrive_heard" in getattr(iterator, "__dict__", {})


def open_heard(loader: Any, call: Callable[[], Any], heard: Heard) -> Any:
    """Open a loader with workers, and let `heard` be told of each batch. One that is kept open goes on as it is."""
    if loader.persistent_workers and is_heard(loader._iterator):
        return call()
    iterator, drawn = _opened_noting(loader, call)
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        kind: Any = type(iterator)
        iterator.__class__ = _heard_class(kind)
        vars(iterator).update(overdrive_heard=heard, overdrive_drawn=drawn)
    return iterator


def _opened_noting(loader: Any, call: Callable[[], Any], kind: type[_Noting] | None = None) -> tuple[Any, deque[Any]]:
    """An iterator, and the indices of its batches as they are drawn, which may be long before these come."""
    space = loader.__dict__  # the loader refuses that this is set the usual way
    sampler = space["batch_sampler"]
    noting = (kind or _Noting)(sampler)
    space["batch_sampler"] = noting
    try:
        return call(), noting.drawn
    finally:
        space["batch_sampler"] = sampler


def open_while(loader: Any, call: Callable[[], Any], copied: Callable[[], Callable[[], bool]], live: bool) -> Any:
    """Open a loader with workers, in the place of one that starts none, or new ones for each epoch.

    Workers that live on are taken where all batches of their last epoch were, and their data is still valid. As they
    would be without, seeds are drawn for each epoch.

    Args:
        copied: asked before workers start, which get a copy of the data set; gives what tells whether that is valid.
        live: the program is to see at once what changes: that is asked before each batch, and from the first no on
            this process fetches for itself, what is under way first.
    """
    current = loader._iterator if loader.persistent_workers else None
    if current is not None and getattr(current, "overdrive_over", False) and current.overdrive_valid():
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return call()
    let_open_anew(loader)
    valid = copied()
    iterator, drawn = _opened_noting(loader, call, _Gated if live else _Noting)
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        kind: Any = type(iterator)
        vars(iterator).update(overdrive_valid=valid, overdrive_live=live, overdrive_undelivered=drawn)
        iterator.__class__ = _while_valid(kind)
    elif isinstance(gate := getattr(iterator, "_sampler_iter", None), _Gate):
        gate.open = True  # another technique has opened it without workers
    return iterator


def hear_no_more(iterator: Any) -> None:
    """Make it again what it was."""
    drawn = iterator.overdrive_drawn
    iterator.__class__ = type(iterator).__base__
    del iterator.overdrive_heard, iterator.overdrive_drawn
    holder, name = iterator, "_index_sampler"
    while isinstance(noting := getattr(holder, name), _Noting):
        if noting.drawn is drawn:
            setattr(holder, name, noting.sampler)
            return
        holder, name = noting, "sampler"


def open_without_workers(loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator of this process in the place of one with workers. It draws the seed that they would have got."""
    space = loader.__dict__
    names = ("num_workers", "persistent_workers", "timeout")
    before = {name: space[name] for name in names}
    generator = loader.generator if loader.generator is not None else torch.default_generator
    # Persistent workers drew their seed in an earlier epoch.
    state = generator.get_state() if before["persistent_workers"] and loader._iterator is not None else None
    space.update(num_workers=0, persistent_workers=False, timeout=0)
    try:
        with warned_as(workers=True):
            iterator = call()
    finally:
        space.update(before)
    if state is not None:
        generator.set_state(state)
    if before["persistent_workers"]:
        loader._iterator = iterator  # its workers, if there were some, end
    return iterator


def begin_again(iterator: Any, loader: Any) -> None:
    """The next epoch of one that is kept open. As PyTorch does it: no seed is drawn again."""
    iterator._reset(loader)


def let_open_anew(loader: Any) -> None:
    """The loader makes an iterator of its own the next time; workers that it has kept end."""
    loader._iterator = None


def change(loader: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Set attributes that a `DataLoader` guards against assignment, from its next epoch on; returns what they were."""
    before = {name: loader.__dict__[name] for name in attributes}
    loader.__dict__.update(attributes)
    let_open_anew(loader)
    return before


class Ahead:
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

    def __iter__(self) -> Ahead:
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


class Peeking:
    """Draws a few of an iterator's indices early, but neither the first nor the last one.

    Args:
        length: how many there are.
    """

    def __init__(self, indices: Iterator[Any], length: int) -> None:
        self._indices = indices
        self._left = length
        self._drawn: deque[Any] = deque()

    def __iter__(self) -> Peeking:
        return self

    def __next__(self) -> Any:
        if self._drawn:
            return self._drawn.popleft()
        self._left -= 1
        return next(self._indices)

    def coming(self, count: int) -> list[Any]:
        """What `next` will give, this much at most. Only for one who has had the first."""
        while len(self._drawn) < count and self._left > 1:
            self._left -= 1
            self._drawn.append(next(self._indices))
        return list(self._drawn)[:count]


@dataclass(frozen=True)
class Again:
    """What a worker hands over in the place of a batch that the program is to fetch for itself."""

    reason: str


def fetch_in_worker_by(fetch: Callable[[Any, Callable[[Any, Any], Any], Any], Any]) -> None:
    """In a loader's worker: `fetch(fetcher, real, indices)` makes its batches, where PyTorch would call `real`."""
    real = _MapDatasetFetcher.fetch
    setattr(_MapDatasetFetcher, "fetch", lambda fetcher, indices: fetch(fetcher, real, indices))  # noqa: B010


def in_worker() -> bool:
    """Whether this process is one of a loader's workers."""
    return worker._worker_info is not None


def become_worker(dataset: Any, number: int, workers: int, prepare: Callable[[int], Any] | None) -> None:
    """Make this forked process what a loader's worker `number` would be."""
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=workers, seed=number, dataset=dataset)
    if prepare is not None:
        prepare(number)


class _Noting:
    """A batch sampler that notes which indices it hands out."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.drawn: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.drawn.clear()
        for each in self.sampler:
            self.drawn.append(each)
            yield each

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


class _Gated(_Noting):
    """The same, which hands out none before the program asks for its first batch: then a sampler draws its seed."""

    def __iter__(self) -> Iterator[Any]:
        return _Gate(super().__iter__())


class _Gate:
    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self.open = False

    def __iter__(self) -> _Gate:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        return next(self._indices)


def begin(iterator: Any, workers: bool = True) -> None:
    """The program asks for its first batch: indices are drawn from now on, and `workers` get theirs."""
    gate = iterator._sampler_iter
    if isinstance(gate, _Gate) and not gate.open:
        gate.open = True
        for _ in range(iterator._prefetch_factor * iterator._num_workers if workers else 0):
            iterator._try_put_index()


@cache
def _while_valid(kind: Any) -> Any:
    class WhileValid(kind):  # type: ignore[misc]
        overdrive_valid: Callable[[], bool]
        overdrive_live: bool
        overdrive_undelivered: deque[Any]  # indices of batches that the program has not had yet
        overdrive_own: Any = None  # fetches here, from the first batch on that is not valid
        overdrive_over = False  # the epoch

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            self.overdrive_over = False
            super()._reset(loader, first_iter)

        def _next_data(self) -> Any:
            if self.overdrive_own is None and self.overdrive_live and not self.overdrive_valid():
                self.overdrive_own = map_fetcher(self._dataset, self._collate_fn)
                self._shutdown_workers()
            begin(self, self.overdrive_own is None)
            undelivered = self.overdrive_undelivered
            if self.overdrive_own is None:
                try:
                    batch = super()._next_data()
                except StopIteration:
                    self.overdrive_over = True
                    raise
                except Exception as error:
                    if not self.overdrive_live:  # the program's own, in place of this batch
                        undelivered.popleft()
                        raise
                    batch = Again(f"{type(error).__name__}: {error}")  # one of them was killed, say
                if not isinstance(batch, Again):
                    undelivered.popleft()
                    return batch
                log.info("a loader's workers end: %s", batch.reason)
                self.overdrive_own = map_fetcher(self._dataset, self._collate_fn)
                self._shutdown_workers()
            if not undelivered:
                next(self._sampler_iter)  # which notes it
            batch = self.overdrive_own.fetch(undelivered.popleft())
            if self._pin_memory:
                return pin_memory.pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
            return batch

    return WhileValid


@cache
def _heard_class(kind: Any) -> Any:
    """PyTorch's iterator, which tells of its batches. A class, because a bound function on the instance would be a
    cycle and keep workers alive until the garbage is collected."""

    class Heard(kind):  # type: ignore[misc]
        overdrive_heard: Heard
        overdrive_drawn: deque[Any]

        def _next_index(self) -> Any:
            index = super()._next_index()
            if kind is _SingleProcessDataLoaderIter:  # workers' are noted as they are drawn: some are already
                self.overdrive_drawn.append(index)
            return index

        def _next_data(self) -> Any:
            try:
                batch = super()._next_data()
            except StopIteration:
                raise
            except BaseException:
                self.overdrive_drawn.clear()  # from here on, batches and indices may not match
                raise
            if self.overdrive_drawn:
                self.overdrive_heard(self.overdrive_drawn.popleft(), batch)
            return batch

    return Heard
