"""Caches samples one by one, as bytes, for programs whose batches are not just samples stacked: they hold texts, or a
collate function of the program's own makes them.

Such a function may pad, sort, mix or draw: it is called as without us, at the same moments, with samples that are equal
in every bit to those that the data set would make. So it is only these that must always come out the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from overdrive.core.progress import progress
from overdrive.core.rng import reseed
from overdrive.datacache.decoding import decode
from overdrive.datacache.encoding import encode
from overdrive.datacache.forms import Ragged
from overdrive.datacache.ragged import Filled
from overdrive.datacache.sameness import same
from overdrive.datacache.source import Source, spread
from overdrive.datacache.table import Bytes
from overdrive.forks.forked import Tick, in_child
from overdrive.forks.layout import Layout, Unfit

_SAMPLES = 12


@dataclass(frozen=True)
class SingleSource(Source):
    """A loader's samples, each of them a row of bytes that says its own form.

    `fetch` gives such rows, which are what is kept; `sample` and `unpack` give the program's samples.
    """

    form: Ragged = field(kw_only=True)

    @classmethod
    def tried(cls, source: Source) -> SingleSource:
        """
        Raises:
            Unfit: its samples cannot be written down, or are not made anew for each fetch.
        """
        answer = in_child(lambda tick: _examine(source, tick), lambda _: progress(0, source.count))
        how = (source.dataset, source.collate, source.workers, source.prepare_worker, source.batch_size)
        return cls(*how, share=source.share, kind=source.kind, form=Ragged(*answer))

    @property
    def roots(self) -> tuple[Any, ...]:
        """All that the samples depend on but the collate function, which is called each time."""
        return (*replace(self.plain, collate=None).roots, "one by one")

    def same(self, other: Source) -> bool:
        alike = other.collate is self.collate or makes_batches_itself(other)
        return alike and super().same(replace(other, collate=self.collate))

    @property
    def plain(self) -> Source:
        how = (self.dataset, self.collate, self.workers, self.prepare_worker, self.batch_size)
        return Source(*how, share=self.share, kind=self.kind)

    def sample(self, row: int) -> Any:
        """The real one."""
        return _samples(self.plain, [row])[0]

    def fetch(self, rows: list[int]) -> Any:
        """
        Raises:
            Unfit: a sample of another kind than those that were tried.
        """
        import torch

        batch = torch.zeros((len(rows), self.form.room), dtype=torch.uint8)
        for place, sample in zip(batch.numpy(), _samples(self.plain, rows), strict=True):
            row = self.pack(sample)
            place[: len(row)] = row
        return batch

    def pack(self, sample: Any) -> Bytes:
        """
        Raises:
            Unfit: as `fetch`.
        """
        return self.form.join(*encode((sample,)))

    def unpack(self, row: Bytes) -> Any:
        """A sample, in memory of its own."""
        return decode(*self.form.parts(row))[0]

    def bytes_of_all(self, layout: Layout) -> int:
        return self.form.mean * self.count

    @property
    def filled(self) -> Filled | None:
        return self.form.filled


def makes_batches_itself(source: Source) -> bool:
    """Whether the program has a collate function of its own, that is called in its own process."""
    from torch.utils.data import default_collate

    return source.collate is not default_collate and not source.workers


def _samples(source: Source, rows: list[int]) -> list[Any]:
    """Samples as torch's fetcher hands them to the collate function."""
    samples = replace(source, collate=_as_they_are).fetch(rows)
    if type(samples) is not list or len(samples) != len(rows):
        raise Unfit("its data set fetches other things than a list of samples")
    return samples


def _as_they_are(samples: Any) -> Any:
    return samples


def _examine(source: Source, tick: Tick) -> tuple[int, int]:
    """Room for a row, and the mean of what is filled of it; runs in the forked process."""
    from torch.utils.data import Subset

    dataset = source.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    if callable(getattr(dataset, "__getitems__", None)):
        raise Unfit("its data set fetches whole batches by itself")
    indices = spread(source.count, _SAMPLES)
    reseed(4)
    ones = _each(source, indices, tick)
    reseed(5)
    others = _each(source, indices[::-1], tick)[::-1]
    encoded = []
    for one, other in zip(ones, others, strict=True):
        try:
            encoded.append(encode((one,)))
        except Unfit as error:
            raise Unfit(f"a sample cannot be written down: {error}") from None
        if _parts(one) & _parts(other):
            raise Unfit("its samples are things that the data set holds, and not made for each fetch")
        if not same(other, decode(*encoded[-1])[0]):
            raise Unfit("its samples change from fetch to fetch, or cannot be written down")
    form = Ragged.of(encoded)
    return form.room, form.mean


def _each(source: Source, rows: list[int], tick: Tick) -> list[Any]:
    fetched = []
    for row in rows:
        fetched += _samples(source, [row])
        tick(1)
    return fetched


def _parts(thing: Any) -> set[tuple[str, int]]:
    """All that can be written to in a sample: containers, and the memory of arrays and tensors."""
    if isinstance(thing, tuple):
        return set().union(*map(_parts, thing))
    if isinstance(thing, (list, dict)):
        values = list(thing.values()) if isinstance(thing, dict) else thing
        return {("object", id(thing))}.union(*map(_parts, values))
    if isinstance(thing, np.ndarray) and thing.size:
        return {("memory", int(thing.__array_interface__["data"][0]))}
    if hasattr(thing, "data_ptr") and thing.numel():
        return {("memory", int(thing.untyped_storage().data_ptr()))}
    plain = isinstance(thing, (str, bytes, int, float, bool, type(None), np.generic, np.ndarray))
    return set() if plain else {("object", id(thing))}
