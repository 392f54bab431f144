"""Finds which of a data set's samples a loader asks for, where its sampler asks for the same ones in each epoch.

The ranks of a training get such samplers (`DistributedSampler` with `shuffle=False`), and so do the two halves of a
data set that was split by numbers (`SubsetRandomSampler`). A table then needs rows for these samples only.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any

import numpy as np

from overdrive.core.progress import log
from overdrive.core.rng import reseed
from overdrive.datacache.table import Rows, whole_numbers
from overdrive.forks.forked import in_child
from overdrive.forks.layout import Unfit

# Of the data set: of more, one table with all of it serves the loaders of the other parts as well.
_LARGEST = 2 / 3


class SampleShare:
    """Samples by number, in ascending order. A table has a row for each."""

    def __init__(self, numbers: Rows) -> None:
        self.numbers = numbers

    def rows(self, indices: Any, kind: type = int) -> Rows | None:
        """The rows that a batch's indices mean; None where one of them has none, or is not of this kind."""
        wanted = whole_numbers(indices, kind)
        if wanted is None:
            return None
        rows = np.searchsorted(self.numbers, wanted).clip(max=len(self.numbers) - 1)
        return rows if np.array_equal(self.numbers[rows], wanted) else None

    def same(self, other: SampleShare | None) -> bool:
        return other is not None and np.array_equal(self.numbers, other.numbers)


class Shares:
    """The shares of all loaders of a session, by their samplers."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, SampleShare | None] = weakref.WeakKeyDictionary()

    def of(self, loader: Any) -> SampleShare | None:
        """What the loader asks for, found by drawing two epochs in a forked process; None where that is not always
        the same, or most of the data set.

        For torch's own samplers only: another one may write to files or to memory that forked processes share.
        """
        batches = loader.batch_sampler
        sampler = getattr(batches, "sampler", None)  # the loader's own counts for nothing where batches were given
        if not all(type(each).__module__.startswith("torch.utils.data.") for each in (sampler, batches)):
            return None
        if sampler not in self._known:
            self._known[sampler] = _share_of(sampler, len(loader.dataset))
        return self._known[sampler]


def kind_of(sampler: Any) -> type:
    """Of the numbers that a sampler gives: NumPy's where it has them from an array, a fold of scikit-learn's, say."""
    from torch.utils.data import SubsetRandomSampler

    indices = getattr(sampler, "indices", None)
    arrayed = type(sampler) is SubsetRandomSampler and type(indices) is np.ndarray and indices.dtype == np.int64
    return np.int64 if arrayed else int


def _share_of(sampler: Any, count: int) -> SampleShare | None:
    try:
        if len(sampler) > _LARGEST * count:
            return None
        numbers = in_child(lambda tick: _drawn(sampler, count))
    except (Unfit, TypeError) as error:
        log.info("what a sampler asks for is not known: %s", error)
        return None
    if numbers is None and hasattr(sampler, "set_epoch"):
        log.info(
            "each rank's %s shuffles the whole data set anew in each epoch, so that all of it is kept on this "
            "machine; with shuffle=False it would be this rank's share",
            type(sampler).__name__,
        )
    return SampleShare(np.array(numbers, dtype=np.intp)) if numbers else None


def _drawn(sampler: Any, count: int) -> list[int] | None:
    """Runs in the forked process."""
    epochs: list[Rows] = []
    for epoch in (1, 2):
        reseed(epoch)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        indices = whole_numbers(list(islice(sampler, count)), kind_of(sampler))
        if indices is None or indices.max() >= count:
            return None
        epochs.append(np.unique(indices))
    one, other = epochs
    numbers: list[int] = one.tolist()
    return numbers if np.array_equal(one, other) and len(numbers) <= _LARGEST * count else None
