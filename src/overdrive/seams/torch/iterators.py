"""PyTorch's iterators over a `DataLoader`, from inside: what they fetch from, and how a loader opens one.

An iterator stays PyTorch's own: it draws the same random numbers at the same time. Who fetches its batches is changed
in `fetchers`, which indices it draws in `drawn_indices`, who hears of both in `heard_iterators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from overdrive.seams.batches import leading_size, leaves, rows_of
from overdrive.seams.torch.fetchers import is_map_fetcher
from overdrive.seams.torch.heard_iterators import is_heard
from overdrive.seams.torch.loader_warnings import warned_as


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
    if alone and not stream and not is_map_fetcher(iterator._dataset_fetcher):
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


def dataset_of(iterator: Any) -> Any:
    return iterator._dataset


def items_of_batch(iterator: Any, samples: int) -> int:
    """Items of the data set in each batch: as many as it has samples, where its sampler does not say otherwise.

    An item may be a batch by itself: of public DLRM 64 samples, which its loader hands out one by one.
    """
    if not getattr(iterator, "_auto_collation", True):
        return 1
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    return min(size, samples or size) if isinstance(size, int) else samples


def samples_in(iterator: Any, batch: Any) -> int:
    """The first tensor's rows, unless something else in the batch has as many as the sampler gave.

    Of detectors, whose pictures are of several sizes, a batch is a list of pictures and one of their boxes, as
    `zip(*items)` gives them: there the first tensor's rows are one picture's colours. Of a batch of graphs they are
    nodes, or the two ends of edges, and of texts that are put together they are words.
    """
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    # Mostly a tensor, in every step: to look into it as into anything takes 2 us.
    try:
        rows = first.shape[0] if type(first) is torch.Tensor else 0
    except (IndexError, RuntimeError):  # a single number; a nested one, whose shape cannot be asked for
        rows = 0
    found = rows or leading_size(batch)
    size = getattr(getattr(iterator, "_index_sampler", None), "batch_size", None)
    if not isinstance(size, int) or found == size:
        return found
    parts = batch if isinstance(batch, (list, tuple)) else ()
    transposed = bool(parts) and all(isinstance(part, (list, tuple)) and len(part) == size for part in parts)
    return size if transposed or size in map(rows_of, leaves(batch)) else found


def workers_of(iterator: Any) -> int:
    return int(getattr(iterator, "_num_workers", 0))


def prefetch_of(iterator: Any) -> int:
    """Batches that each worker makes ahead."""
    return getattr(iterator, "_prefetch_factor", None) or 0


def pins(iterator: Any) -> bool:
    """Whether it puts its batches into pinned memory."""
    return bool(getattr(iterator, "_pin_memory", False))


def is_of_workers(iterator: Any) -> bool:
    return isinstance(iterator, _MultiProcessingDataLoaderIter)


def kept_open(loader: Any) -> Any:
    """The iterator that a loader with persistent workers goes on with; None where there is none yet."""
    return loader._iterator


def makes_its_own(loader: Any) -> bool:
    """Whether its class opens it in another way than PyTorch does."""
    return type(loader)._get_iterator is not DataLoader._get_iterator


def give_workers(loader: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """As `change`: workers that are not the program's, or are not as it has them."""
    before = change(loader, attributes)
    _programs.setdefault(loader, before)
    return before


def take_workers_back(loader: Any, attributes: Mapping[str, Any]) -> None:
    """Workers that live on for the program as well go on: they end as the program has them end. One that ends by itself
    says what it had not said yet; by plain Python it is lost, where those live to the end of the process."""
    _programs.pop(loader, None)
    if attributes["persistent_workers"]:
        loader.__dict__.update(attributes)
    else:
        change(loader, attributes)


def workers_of_program(loader: Any) -> int:
    """How many workers the program has given the loader."""
    return int(_of_program(loader, "num_workers"))


def lasts_for_program(loader: Any) -> bool:
    """Whether the program's workers live on from epoch to epoch."""
    return bool(_of_program(loader, "persistent_workers"))


def init_of_program(loader: Any) -> Any:
    """What the program has its workers do first; None where it has none."""
    return _of_program(loader, "worker_init_fn") if workers_of_program(loader) else None


def _of_program(loader: Any, name: str) -> Any:
    return _programs.get(loader, loader.__dict__)[name]


_programs: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # what they were before


@contextmanager
def as_program_has_it(loader: Any) -> Iterator[None]:
    """The loader, inside, is what it was before it was given other workers."""
    space = loader.__dict__
    before = {name: space[name] for name in _programs.get(loader, ())}
    space.update(_programs.get(loader, {}))
    try:
        yield
    finally:
        space.update(before)


@contextmanager
def begun_by(loader: Any, init: Callable[[int], Any]) -> Iterator[None]:
    """Workers that begin inside do this first."""
    space = loader.__dict__
    before, space["worker_init_fn"] = space["worker_init_fn"], init
    try:
        yield
    finally:
        if space["worker_init_fn"] is init:  # else the loader was given back meanwhile
            space["worker_init_fn"] = before


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


def open_without_workers(loader: Any, call: Callable[[], Any]) -> Any:
    """An iterator of this process in the place of one with workers. It draws the seed that they would have got."""
    space = loader.__dict__
    names = ("num_workers", "persistent_workers", "timeout")
    before = {name: space[name] for name in names}
    lasts, workers = lasts_for_program(loader), workers_of_program(loader)
    generator = loader.generator if loader.generator is not None else torch.default_generator
    # Persistent workers drew their seed in an earlier epoch.
    goes_on = lasts and kept_open(loader) is not None
    state = generator.get_state() if goes_on else None
    space.update(num_workers=0, persistent_workers=False, timeout=0)
    try:
        with warned_as(workers, goes_on):
            iterator = call()
    finally:
        space.update(before)
    if state is not None:
        generator.set_state(state)
    if lasts:
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
