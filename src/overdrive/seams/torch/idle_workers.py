"""A loader's own workers, which wait while its batches come from elsewhere: what they hold is as old as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from overdrive.seams.torch.fetchers import fetcher_of
from overdrive.seams.torch.heard_iterators import hear_no_more, is_heard
from overdrive.seams.torch.iterators import as_program_has_it, kept_open


class IdleWorkers:
    """
    Args:
        iterator: PyTorch's own, with workers.
        new: they have done nothing yet.
    """

    def __init__(self, iterator: Any, new: bool = False) -> None:
        self.iterator = iterator
        self._waiting = new

    def fetch(self, indices: Any) -> Any:
        """A batch that one of them makes now."""
        iterator = self.iterator
        if not self._waiting:
            self._end_epoch()
        iterator._sampler_iter = iter([indices])
        iterator._try_put_index()
        return iterator._next_data()

    def _end_epoch(self) -> None:
        """The one that was under way may have been broken off: what they have made of it goes nowhere."""
        iterator, self._waiting = self.iterator, True
        sampler, iterator._index_sampler = iterator._index_sampler, []
        try:
            iterator._reset(iterator)  # of a loader it wants no more than an iterator has
        finally:
            iterator._index_sampler = sampler


def workers_that_wait(loader: Any, seeded_by: Any = None, handed_over: int = 0) -> IdleWorkers:
    """Those that the program's loader has kept open; else new ones, as it would start them.

    Args:
        seeded_by: the state of its generator from which the seed of this epoch's workers was drawn; none is drawn then.
        handed_over: batches of this epoch that the program has had: the next is the next worker's.
    """
    current = kept_open(loader) if seeded_by is None else None
    waiting = getattr(fetcher_of(current), "workers", None)
    if isinstance(waiting, IdleWorkers):
        return waiting
    if isinstance(current, _MultiProcessingDataLoaderIter):
        if is_heard(current):
            hear_no_more(current)
        return IdleWorkers(current)
    generator = generator_of(loader)
    state = generator.get_state()
    with as_program_has_it(loader):
        space = loader.__dict__
        sampler, space["batch_sampler"] = space["batch_sampler"], []
        if seeded_by is not None:
            generator.set_state(seeded_by)
        try:
            iterator = loader._get_iterator()
        finally:
            space["batch_sampler"] = sampler
            if seeded_by is not None:
                generator.set_state(state)
    iterator._index_sampler = sampler
    for _ in range(handed_over % iterator._num_workers):
        next(iterator._worker_queue_idx_cycle)
    return IdleWorkers(iterator, new=True)


def generator_of(loader: Any) -> Any:
    """What the seeds of its workers are drawn from."""
    return loader.generator if loader.generator is not None else torch.default_generator


def give_back(loader: Any, waiting: IdleWorkers) -> None:
    """The loader goes on with them from its next epoch on."""
    loader._iterator = waiting.iterator
