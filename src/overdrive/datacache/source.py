"""The source of samples: the parts of a data loader that decide on the content of its batches."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from typing import Any

from overdrive.datacache.codes import Coded, CodedTable
from overdrive.datacache.draws import Generators, contents_of
from overdrive.datacache.ragged import Filled, RaggedTable
from overdrive.datacache.share import SampleShare
from overdrive.datacache.table import Rows, Table
from overdrive.forks.layout import Layout, Unfit
from overdrive.seams.torch.fetchers import become_worker, map_fetcher
from overdrive.seams.torch.iterators import init_of_program, makes_its_own, workers_of_program


@dataclass(frozen=True)
class Source:
    """A loader's data set and how it is fetched from: here (no workers), or in forked workers."""

    dataset: Any
    collate: Any
    workers: int
    prepare_worker: Any  # the loader's worker_init_fn; None without workers
    batch_size: int
    share: SampleShare | None = field(default=None, kw_only=True)  # of the data set, that is ever asked for; None: all
    kind: type = field(default=int, kw_only=True)  # of the numbers that samples are asked for by

    @classmethod
    def of(cls, loader: Any) -> Source:
        """
        Raises:
            Unfit: its samples cannot be kept, as can be told without fetching any.
        """
        from torch.utils.data import IterableDataset

        dataset = loader.dataset
        if isinstance(dataset, IterableDataset):
            raise Unfit("its data set is a stream, which has no samples by number")
        if loader.batch_sampler is None:
            raise Unfit("it makes no batches (batch_size is None)")
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise Unfit("its data set has no length or no samples by number")
        if makes_its_own(loader):
            raise Unfit("it makes an iterator of its own")
        workers = workers_of_program(loader)
        if workers > 0:
            if not getattr(loader, "in_order", True):
                raise Unfit("its workers hand over batches in no fixed order")
            if start_method(loader) != "fork":
                raise Unfit("its workers are not forked, so that they may see another data set than we do")
        if len(dataset) == 0:
            raise Unfit("its data set is empty")
        prepare = init_of_program(loader)
        size = getattr(loader.batch_sampler, "batch_size", None)
        return cls(dataset, loader.collate_fn, workers, prepare, size if isinstance(size, int) else 16)

    @property
    def roots(self) -> tuple[Any, ...]:
        """All that the samples depend on. Workers collate into memory of another layout, so they count."""
        share = () if self.share is None else (self.share.numbers.tobytes(),)
        kind = () if self.kind is int else (self.kind.__name__.encode(),)
        return self.dataset, self.collate, self.prepare_worker, self.workers > 0, *share, *kind

    def same(self, other: Source) -> bool:
        """Whether its samples serve the other one too: it is the same, or a share of the same."""
        alike = self.dataset is other.dataset and self.collate is other.collate and self.kind is other.kind
        in_workers = self.prepare_worker is other.prepare_worker and (self.workers > 0) == (other.workers > 0)
        return alike and in_workers and (self.share is None or self.share.same(other.share))

    @property
    def count(self) -> int:
        """The number of rows of a table for it."""
        return len(self.dataset) if self.share is None else len(self.share.numbers)

    def rows(self, table: Table, indices: Any) -> Rows | None:
        """The rows that a batch's indices mean; None where they are no plain numbers, or one has no row."""
        return (table if self.share is None else self.share).rows(indices, self.kind)

    def indices(self, rows: list[int]) -> list[int]:
        """The indices of these rows."""
        numbers: list[int] = rows if self.share is None else self.share.numbers[rows].tolist()
        return numbers if self.kind is int else list(map(self.kind, numbers))

    def fetch(self, rows: list[int]) -> Any:
        """A real batch, as torch fetches it."""
        return map_fetcher(self.dataset, self.collate).fetch(self.indices(rows))

    def empty_table(self, layout: Layout, coded: Coded = ()) -> Table:
        """For all samples, in memory; the leaves `coded` as codes."""
        if coded:
            return CodedTable.with_codes(layout, self.count, coded)
        if self.filled is not None:
            return RaggedTable.with_room(layout, self.count, self.filled)
        return Table.in_memory(layout, self.count)

    def bytes_of_all(self, layout: Layout) -> int:
        """How much memory the samples need."""
        return layout.bytes * self.count

    @property
    def filled(self) -> Filled | None:
        """How long a row is, where its samples differ in that."""
        return None

    def generators(self) -> Generators:
        """All that its samples may draw from. To look for those of the data set's own takes up to 0.1 s."""
        return contents_of(self.dataset).generators

    def enter_worker(self, number: int, epoch: int = 0) -> None:
        """Make this forked process what the loader's worker `number` would be. Nothing where it has none."""
        if self.workers:
            become_worker(self.dataset, number % self.workers, self.workers, self.prepare_worker, epoch)


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
