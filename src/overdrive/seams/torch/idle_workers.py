"""A loader's own workers, which wait while its batches come from elsewhere: what they hold is as old as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from overdrive.seams.torch.fetchers import fetcher_of
from overdrive.seams.torch.heard_iterators import hear_no_more, is_heard
from overdrive.seams.torch.iterators import kept_open


class IdleWorkers:
    """
    Args:
        iterator: PyTorch's own, with workers.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self._waiting = False

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


def workers_that_wait(loader: Any, seed_drawn: bool = False) -> IdleWorkers:
    """Those that the loader has kept open; else new ones, as it would start them now.

    Args:
        seed_drawn: that of the loader's workers in this epoch: new ones draw none, then.
    """
    current = kept_open(loader)
    waiting = getattr(fetcher_of(current), "workers", None)
    if isinstance(waiting, IdleWorkers):
        return waiting
    if isinstance(current, _MultiProcessingDataLoaderIter):
        if is_heard(current):
            hear_no_more(current)
        return IdleWorkers(current)
    space = loader.__dict__
    generator = loader.generator if loader.generator is not None else torch.default_generator
    state = generator.get_state() if seed_drawn else None
    before, space["batch_sampler"] = space["batch_sampler"], []
    try:
        iterator = loader._get_iterator()
    finally:
        space["batch_sampler"] = before
    if state is not None:
        generator.set_state(state)
    iterator._index_sampler = before
    return IdleWorkers(iterator)


def give_back(loader: Any, waiting: IdleWorkers) -> None:
    """The loader goes on with them from its next epoch on."""
    loader._iterator = waiting.iterator
