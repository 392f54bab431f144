"""PyTorch's iterators that tell of each of their batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from overdrive.seams.torch.drawn_indices import Noting, opened_noting

Heard = Callable[[Any, Any], None]  # told of each batch: the indices that it was made from, and the batch


def is_alone(iterator: Any) -> bool:
    """Whether it is PyTorch's iterator that works in this process, without workers."""
    return type(iterator) in (_SingleProcessDataLoaderIter, _heard_class(_SingleProcessDataLoaderIter))


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
    iterator, drawn = opened_noting(loader, call)
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        kind: Any = type(iterator)
        iterator.__class__ = _heard_class(kind)
        vars(iterator).update(overdrive_heard=heard, overdrive_drawn=drawn)
    return iterator


def hear_no_more(iterator: Any) -> None:
    """Make it again what it was. Where another class of ours lies above, that stays, and nobody is told any more."""
    drawn, kind = iterator.overdrive_drawn, type(iterator)
    if kind is _heard_class(kind.__base__):
        iterator.__class__ = kind.__base__
    del iterator.overdrive_heard, iterator.overdrive_drawn
    holder, name = iterator, "_index_sampler"
    while isinstance(noting := getattr(holder, name), Noting):
        if noting.drawn is drawn:
            setattr(holder, name, noting.sampler)
            return
        holder, name = noting, "sampler"


@cache
def _heard_class(kind: Any) -> Any:
    """PyTorch's iterator, which tells of its batches. A class, because a bound function on the instance would be a
    cycle and keep workers alive until the garbage is collected."""

    class Heard(kind):  # type: ignore[misc]
        overdrive_heard: Heard
        overdrive_drawn: deque[Any]
        overdrive_astray = False  # it is not known any more which indices a batch was made from

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            self.overdrive_astray = False
            super()._reset(loader, first_iter)

        def _next_index(self) -> Any:
            index = super()._next_index()
            # Workers' are noted as they are drawn: some are already.
            if kind is _SingleProcessDataLoaderIter and is_heard(self):
                self.overdrive_drawn.append(index)
            return index

        def _next_data(self) -> Any:
            if not is_heard(self):
                return super()._next_data()
            try:
                batch = super()._next_data()
            except StopIteration:
                raise
            except BaseException:
                self.overdrive_drawn.clear()
                # Workers make batches whose indices were just cleared, and more will be drawn meanwhile.
                self.overdrive_astray = kind is not _SingleProcessDataLoaderIter
                raise
            if self.overdrive_drawn and not self.overdrive_astray:
                self.overdrive_heard(self.overdrive_drawn.popleft(), batch)
            return batch

    return Heard
