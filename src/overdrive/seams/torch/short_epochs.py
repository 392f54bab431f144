"""Epochs of few samples: a loader hands out its first batches and its last one, whose size may be another's.

The indices between are drawn and dropped, so that a sampler's generator ends where it does after a whole epoch. What
has a batch sampler of its own, or none, is left as it is. Lengths are told as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler

_Batches = Callable[[Any], Iterator[Any]]
_FEWEST_BATCHES = 4  # of an epoch of training, before its last one ...
_FEWEST_STEPS = 2  # ... and steps, by which it is known for one: workers may have drawn all of its batches before


def shorten_epochs(samples: int) -> None:
    """From now on this process's loaders come to the end of an epoch after so many samples, in whole batches."""
    drawn: _Batches = BatchSampler.__iter__

    def begins_and_ends(self: Any) -> Iterator[Any]:
        batches, length = drawn(self), _length(self)
        first = max(1, -(-samples // self.batch_size) - 1)  # and the last one
        if length is None or length <= first + 1:
            yield from batches
            return
        yield from islice(batches, first)
        yield from deque(islice(batches, length - first), maxlen=1)

    BatchSampler.__iter__ = begins_and_ends  # type: ignore[method-assign]


def shorten_training(steps: Callable[[], int], found: Callable[[int], None]) -> None:
    """From now on epochs in which training steps are made end after a few. Others, such as evaluations, are whole.

    Args:
        steps: how many were made so far.
        found: told of each such epoch after how many steps it began.
    """
    drawn: _Batches = BatchSampler.__iter__

    def ends_soon(self: Any) -> Iterator[Any]:
        batches, length, began = drawn(self), _length(self), steps()
        for count, batch in enumerate(batches, start=1):
            yield batch
            if length is not None and count >= _FEWEST_BATCHES and steps() - began >= _FEWEST_STEPS:
                found(began)
                yield from deque(batches, maxlen=1)

    BatchSampler.__iter__ = ends_soon  # type: ignore[method-assign]


def _length(batches: Any) -> int | None:
    """In batches; None where the sampler does not say, and may have no end."""
    try:
        return len(batches)
    except TypeError:
        return None
