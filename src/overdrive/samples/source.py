"""Where samples come from: what of a data loader decides on the content of its batches."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import Any

from overdrive.samples.layout import Layout, Unfit
from overdrive.samples.table import Table


@dataclass(frozen=True)
class Source:
    """A loader's data set and how it is fetched from: here (no workers), or in forked workers."""

    dataset: Any
    collate: Any
    workers: int
    prepare_worker: Any  # the loader's worker_init_fn; None without workers
    batch_size: int

    @classmethod
    def of(cls, loader: Any) -> Source:
        """
        Raises:
            Unfit: its samples cannot be kept, as can be told without fetching any.
        """
        from torch.utils.data import DataLoader, IterableDataset

        dataset = loader.dataset
        if isinstance(dataset, IterableDataset):
            raise Unfit("its data set is a stream, which has no samples by number")
        if loader.batch_sampler is None:
            raise Unfit("it makes no batches (batch_size is None)")
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise Unfit("its data set has no length or no samples by number")
        if type(loader)._get_iterator is not DataLoader._get_iterator:
            raise Unfit("it makes an iterator of its own")
        if loader.num_workers > 0:
            if not getattr(loader, "in_order", True):
                raise Unfit("its workers hand over batches in no fixed order")
            if start_method(loader) != "fork":
                raise Unfit("its workers are not forked, so that they may see another data set than we do")
        if len(dataset) == 0:
            raise Unfit("its data set is empty")
        workers = int(loader.num_workers)
        prepare = loader.worker_init_fn if workers else None
        size = getattr(loader.batch_sampler, "batch_size", None)
        return cls(dataset, loader.collate_fn, workers, prepare, size if isinstance(size, int) else 16)

    @property
    def roots(self) -> tuple[Any, Any, Any, bool]:
        """All that the samples depend on. Workers collate into memory of another layout, so they count."""
        return self.dataset, self.collate, self.prepare_worker, self.workers > 0

    def same(self, other: Source) -> bool:
        mine, others = self.roots, other.roots
        return all(a is b for a, b in zip(mine, others, strict=True))

    def fetch(self, indices: list[int]) -> Any:
        """A real batch, as torch fetches it."""
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        fetcher = _MapDatasetFetcher(self.dataset, True, self.collate, False)
        return fetcher.fetch(indices)  # type: ignore[no-untyped-call]

    def empty_table(self, layout: Layout) -> Table:
        """For all samples, in memory."""
        return Table.in_memory(layout, len(self.dataset))

    def bytes_of_all(self, layout: Layout) -> int:
        """How much memory the samples need."""
        return layout.bytes * len(self.dataset)

    @property
    def on_disk(self) -> bool:
        """Whether they may be kept there."""
        return True

    def enter_worker(self, number: int) -> None:
        """Make this forked process what the loader's worker `number` would be. Nothing where it has none."""
        if not self.workers:
            return
        from torch.utils.data._utils import worker

        number %= self.workers
        worker._worker_info = worker.WorkerInfo(id=number, num_workers=self.workers, seed=number, dataset=self.dataset)
        if self.prepare_worker is not None:
            self.prepare_worker(number)


def start_method(loader: Any) -> str:
    """How its workers will be started."""
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else None
    # Asking plainly would fix the method for the program.
    method = method or multiprocessing.get_start_method(allow_none=True)
    return str(method or multiprocessing.get_all_start_methods()[0])


def spread(count: int, wanted: int) -> list[int]:
    """About `wanted` indices, evenly spread, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(step * (count - 1) / (wanted - 1)) for step in range(wanted)})
