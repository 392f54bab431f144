"""Workers in the place of none, or of others that begin anew in each epoch, for as long as their copy of the data is
valid."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from overdrive.core.progress import log
from overdrive.seams.torch.drawn_indices import Gate, Gated, Noting, begin, opened_noting
from overdrive.seams.torch.fetchers import LeftToFetch, map_fetcher
from overdrive.seams.torch.idle_workers import generator_of, workers_that_wait
from overdrive.seams.torch.iterators import let_open_anew


def open_while(
    loader: Any,
    call: Callable[[], Any],
    copied: Callable[[], Callable[[], bool]],
    live: bool,
    given_up: Callable[[], None] = lambda: None,
) -> Any:
    """Open a loader with workers, in the place of one that starts none, or new ones for each epoch.

    A batch that a worker does not hand over is fetched as the program would have fetched it, and all after it in that
    epoch: by this process, or by workers of the program's own that begin then.

    Workers that live on are taken where all batches of their last epoch were, and their data is still valid. As they
    would be without, seeds are drawn for each epoch.

    Args:
        copied: asked before workers start, which get a copy of the data set; gives what tells whether that is valid.
        live: the program is to see at once what changes: that is asked before each batch, and from the first no on
            this process fetches for itself, what is under way first. Else the program has workers of its own.
        given_up: told when the program's own workers begin.
    """
    state = generator_of(loader).get_state()
    current = loader._iterator if loader.persistent_workers else None
    if current is not None and getattr(current, "overdrive_over", False) and current.overdrive_valid():
        current.overdrive_seeded_by = state
        current.overdrive_draws_seed = True
        try:
            return call()
        finally:
            current.overdrive_draws_seed = False
    let_open_anew(loader)
    valid = copied()
    iterator, drawn = opened_noting(loader, call, Gated if live else Noting)
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        kind: Any = type(iterator)
        vars(iterator).update(overdrive_valid=valid, overdrive_live=live, overdrive_undelivered=drawn)
        vars(iterator).update(overdrive_loader=weakref.ref(loader), overdrive_seeded_by=state)
        vars(iterator).update(overdrive_given_up=given_up)
        if live and iterator._worker_pids_set:
            # PyTorch raises an error for a worker that is killed wherever the program is just then. This program has
            # none of its own, and must not end for ours: what waits for a batch sees it in any case.
            signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
            iterator._worker_pids_set = False
        iterator.__class__ = _while_valid(kind)
    elif isinstance(gate := getattr(iterator, "_sampler_iter", None), Gate):
        gate.open = True  # another technique has opened it without workers
    return iterator


class _WithoutWorkers:
    """Fetches by the code of PyTorch's iterator of this process, which its errors come through in plain Python, too."""

    def __init__(self, iterator: Any) -> None:
        self._dataset_fetcher = map_fetcher(iterator._dataset, iterator._collate_fn)
        self._pin_memory = iterator._pin_memory
        self._pin_memory_device = iterator._pin_memory_device

    def fetch(self, indices: Any) -> Any:
        self._next_index = lambda: indices
        return _SingleProcessDataLoaderIter._next_data(self)  # type: ignore[arg-type,no-untyped-call]


@cache
def _while_valid(kind: Any) -> Any:
    class WhileValid(kind):  # type: ignore[misc]
        overdrive_valid: Callable[[], bool]
        overdrive_live: bool
        overdrive_undelivered: deque[Any]  # indices of batches that the program has not had yet
        overdrive_own: Any = None  # fetches here, from the first batch on that is not valid
        overdrive_over = False  # the epoch
        overdrive_loader: Callable[[], Any]
        overdrive_draws_seed = False  # its epoch begins, as one of new workers would
        overdrive_seeded_by: Any  # the state of the generator from which this epoch's seed was drawn
        overdrive_given_up: Callable[[], None]

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            self.overdrive_over = False
            if self.overdrive_draws_seed:  # not where another technique opens without them: PyTorch draws one there
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            super()._reset(loader, first_iter)

        def _next_data(self) -> Any:
            if self.overdrive_own is None and self.overdrive_live and not self.overdrive_valid():
                self._let_program_fetch()
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
                    batch = LeftToFetch(f"{type(error).__name__}: {error}")  # one of them was killed, say
                if not isinstance(batch, LeftToFetch):
                    undelivered.popleft()
                    return batch
                log.info("a loader's workers end: %s", batch.reason)
                self._let_program_fetch()
            if not undelivered:
                next(self._sampler_iter)  # which notes it
            return self.overdrive_own.fetch(undelivered.popleft())

        def _let_program_fetch(self) -> None:
            self.overdrive_given_up()
            self._shutdown_workers()
            loader = self.overdrive_loader()
            if self.overdrive_live or loader is None:
                self.overdrive_own = _WithoutWorkers(self)
            else:
                self.overdrive_own = workers_that_wait(loader, self.overdrive_seeded_by, self._num_yielded)

    return WhileValid
