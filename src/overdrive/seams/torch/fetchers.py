"""Who fetches the batches of PyTorch's iterators: in this process, and in a loader's worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils import worker
from torch.utils.data._utils.fetch import _MapDatasetFetcher

_SEEDS = 1_000_003  # from one epoch's to the next


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


def is_map_fetcher(fetcher: Any) -> bool:
    """Whether it is PyTorch's own, of a map-style data set; one that only announces does not count."""
    while type(fetcher) is Announcing:
        fetcher = fetcher.real
    return type(fetcher) is _MapDatasetFetcher


def fetcher_of(iterator: Any) -> Any:
    """Who fetches its batches; None where that is not PyTorch's iterator of this process."""
    return getattr(iterator, "_dataset_fetcher", None)


def fetch_by(iterator: Any, fetcher: Fetcher) -> None:
    iterator._dataset_fetcher = fetcher


@dataclass(frozen=True)
class LeftToFetch:
    """What a worker hands over in the place of a batch that the program is to fetch for itself."""

    reason: str


def fetch_in_worker_by(fetch: Callable[[Any, Callable[[Any, Any], Any], Any], Any]) -> None:
    """In a loader's worker: `fetch(fetcher, real, indices)` makes its batches, where PyTorch would call `real`."""
    real = _MapDatasetFetcher.fetch
    setattr(_MapDatasetFetcher, "fetch", lambda fetcher, indices: fetch(fetcher, real, indices))  # noqa: B010


def before_each_batch(about_to_fetch: Callable[[], None]) -> None:
    """In a loader's worker: tell this before each batch from the next on."""
    real = _MapDatasetFetcher.fetch

    def fetch(fetcher: Any, indices: Any) -> Any:
        about_to_fetch()
        return real(fetcher, indices)  # type: ignore[no-untyped-call]

    setattr(_MapDatasetFetcher, "fetch", fetch)  # noqa: B010


def in_worker() -> bool:
    """Whether this process is one of a loader's workers."""
    return worker._worker_info is not None


def become_worker(
    dataset: Any, number: int, workers: int, prepare: Callable[[int], Any] | None, epoch: int = 0
) -> None:
    """Make this forked process what a loader's worker `number` would be. `epoch`: each gives it another seed."""
    seed = number + epoch * _SEEDS
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=dataset)
    if prepare is not None:
        prepare(number)
