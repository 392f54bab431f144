"""Loaders with workers, of which each batch passes by somebody before the program has it; and iterators that stand in
for one, without workers, until these are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _MultiProcessingDataLoaderIter

from overdrive.seams.torch.drawn_indices import Ahead, Noting, draw_from, indices_of, opened_noting
from overdrive.seams.torch.fetchers import Fetcher, fetch_by, fetcher_of
from overdrive.seams.torch.iterators import kept_open, makes_its_own, open_without_workers

# Given the indices of a batch and what came from a worker, it returns what the program is given.
Passed = Callable[[Any, Any], Any]


def suits(loader: Any) -> bool:
    """Whether it has workers, which give batches of samples by number in their order."""
    by_number = loader._dataset_kind == _DatasetKind.Map and loader._auto_collation
    return bool(loader.num_workers and by_number and loader.in_order) and not makes_its_own(loader)


def open_passed(loader: Any, call: Callable[[], Any], passed: Passed) -> Any:
    """One that is kept open goes on, and its batches pass by this one from now on."""
    kept = kept_open(loader) if loader.persistent_workers else None
    if kept is not None and "overdrive_passed" in vars(kept):
        iterator = call()
    else:
        iterator, drawn = opened_noting(loader, call)
        kind: Any = type(iterator)
        iterator.__class__ = _passed_class(kind)
        iterator.overdrive_drawn = drawn
    iterator.overdrive_passed = passed
    return iterator


@cache
def _passed_class(kind: Any) -> Any:
    class Passed(kind):  # type: ignore[misc]
        overdrive_passed: Passed
        overdrive_drawn: deque[Any]

        def _next_data(self) -> Any:
            try:
                data = super()._next_data()
            except StopIteration:
                raise
            except Exception:  # of the data set; the next batch comes all the same
                self.overdrive_drawn.popleft()
                raise
            return self.overdrive_passed(self.overdrive_drawn.popleft(), data)

    return Passed


def is_over(iterator: Any) -> bool:
    """Whether its workers have ended."""
    return bool(getattr(iterator, "_shutdown", False))


def seed_of(iterator: Any) -> int:
    """From which its workers' seeds come."""
    return int(iterator._base_seed)


class _StandIn(Fetcher):
    def __init__(self, real: Any, made: Callable[[Any], Any]) -> None:
        super().__init__(real)
        self._made = made

    def fetch(self, indices: Any) -> Any:
        return self._made(indices)


def stand_in(loader: Any, call: Callable[[], Any], made: Callable[[Any], Any]) -> Any:
    """An iterator without workers, which draws all that one with workers would, when it would; `made` gives a batch."""
    kept = kept_open(loader) if loader.persistent_workers else None
    if kept is not None:
        kept._reset(loader)
        iterator, indices = kept, indices_of(kept)
    else:
        iterator = open_without_workers(loader, call)
        indices = iter(iterator._index_sampler)  # one with workers asks the sampler twice
    real = fetcher_of(iterator)
    fetch_by(iterator, _StandIn(real.real if isinstance(real, Fetcher) else real, made))
    draw_from(iterator, Ahead(indices, loader.prefetch_factor * loader.num_workers))
    return iterator


def is_stand_in(thing: Any) -> bool:
    return isinstance(thing, _BaseDataLoaderIter) and type(fetcher_of(thing)) is _StandIn


def is_left(iterator: Any) -> bool:
    """Whether a stand-in has batches to come."""
    return bool(indices_of(iterator).coming(1))  # type: ignore[attr-defined]


class _Rest(Noting):
    """The indices that are still to come; none before `open`."""

    def __init__(self, sampler: Any, rest: Iterator[Any]) -> None:
        super().__init__(sampler)
        self._rest = rest
        self.open = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        index = next(self._rest)
        self.drawn.append(index)
        return index


def become_workers(
    iterator: Any, loader: Any, delivered: int, seed: int, init: Callable[[int], None], passed: Passed
) -> None:
    """A stand-in becomes what it stands for, after so many batches of its epoch.

    Args:
        init: what each worker does first, in place of the program's.
    """
    ahead, sampler = indices_of(iterator), iterator._index_sampler
    drawn = ahead.coming(1 << 30)  # type: ignore[attr-defined]
    rest = _Rest(sampler, _after(drawn, ahead.indices))  # type: ignore[attr-defined]
    space = loader.__dict__
    before = {name: space[name] for name in ("batch_sampler", "worker_init_fn")}
    vars(iterator).clear()
    iterator.__class__ = _of_seed(seed)
    space.update(batch_sampler=rest, worker_init_fn=init)
    try:
        _MultiProcessingDataLoaderIter.__init__(iterator, loader)
    finally:
        space.update(before)
    iterator.__class__ = _passed_class(_MultiProcessingDataLoaderIter)
    noting = Noting(sampler)  # for the epochs after this one, if its workers live on
    noting.drawn = rest.drawn
    vars(iterator).update(
        _base_seed=seed,
        _index_sampler=noting,
        _num_yielded=delivered,
        overdrive_drawn=rest.drawn,
        overdrive_passed=passed,
    )
    for _ in range(delivered % iterator._num_workers):
        next(iterator._worker_queue_idx_cycle)
    rest.open = True
    for _ in range(iterator._prefetch_factor * iterator._num_workers):
        iterator._try_put_index()


def _after(drawn: list[Any], indices: Iterator[Any]) -> Iterator[Any]:
    yield from drawn
    yield from indices


def _of_seed(seed: int) -> Any:
    """PyTorch's iterator, whose workers' seeds come from this one, whatever it draws as it is made."""

    class Seeded(_MultiProcessingDataLoaderIter):
        _base_seed = property(lambda self: seed, lambda self, value: None)

    return Seeded
