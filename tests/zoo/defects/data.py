"""What goes wrong between the data set and the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import RandomSampler

from overdrive.core.contract import Contract
from overdrive.seams.hub import Seams
from tests.zoo.specimen import Swap, specimen

Batches = Iterator[Any]


def _change(seams: Seams, change: Callable[[Batches, int], Batches], of_training: bool = True) -> None:
    """`change` is given an epoch's batches and their number, for loaders that shuffle (or for the others)."""

    def opens(loader: Any, call: Callable[[], Any]) -> Any:
        shuffles = isinstance(loader.sampler, RandomSampler)
        return change(iter(call()), len(loader)) if shuffles is of_training else call()

    seams.loader_opens.subscribe(opens)


@specimen("images", Contract.STATISTICAL)
def samples_skipped(seams: Seams) -> None:
    """One sample in a hundred is never seen."""

    def skip(batches: Batches, _: int) -> Batches:
        for number, (x, y) in enumerate(batches):
            yield (x, y) if number % 8 else (x[1:], y[1:])

    _change(seams, skip)


@specimen("images", Contract.STATISTICAL)
def samples_repeated(seams: Seams) -> None:
    """One sample in a hundred stands in the place of another."""

    def repeat(batches: Batches, _: int) -> Batches:
        for number, (x, y) in enumerate(batches):
            if number % 8 == 0:
                x[0], y[0] = x[1], y[1]
            yield x, y

    _change(seams, repeat)


@specimen("images", Contract.STATISTICAL)
def labels_wrong(seams: Seams) -> None:
    """One label in a hundred is another class's."""

    def relabel(batches: Batches, _: int) -> Batches:
        for number, (x, y) in enumerate(batches):
            if number % 8 == 0:
                y[0] = (y[0] + 1) % 5
            yield x, y

    _change(seams, relabel)


@specimen("rows", Contract.STATISTICAL)
def batch_stale(seams: Seams) -> None:
    """Every tenth batch is the one before, again."""

    def again(batches: Batches, _: int) -> Batches:
        before = None
        for number, batch in enumerate(batches):
            yield before if number % 10 == 9 else batch
            before = batch

    _change(seams, again)


@specimen("images", Contract.STATISTICAL)
def batch_halved(seams: Seams) -> None:
    """A fake speedup: only half of each batch is trained on."""

    def halve(batches: Batches, _: int) -> Batches:
        for x, y in batches:
            yield x[: len(x) // 2], y[: len(y) // 2]

    _change(seams, halve)


@specimen("images", Contract.STATISTICAL)
def last_batch_dropped(seams: Seams) -> None:
    """The smaller batch at the end of an epoch is left out."""
    _change(seams, lambda batches, count: islice(batches, count - 1))


@specimen("rows", Contract.STATISTICAL)
def epoch_reversed(seams: Seams) -> None:
    """The batches of an epoch come in reverse order."""
    _change(seams, lambda batches, _: reversed(list(batches)))


@specimen("rows", Contract.STATISTICAL)
def shuffling_frozen(seams: Seams) -> None:
    """Every epoch has the order of the first; all random numbers are drawn as before."""
    first: list[list[int]] = []

    def the_first(sampler: Any) -> Iterator[int]:
        first.append(list(shuffled(sampler)))
        return iter(first[0])

    shuffled = Swap(seams)(RandomSampler, "__iter__", the_first)


@specimen("images", Contract.STATISTICAL)
def augmentation_frozen(seams: Seams) -> None:
    """A cache of samples keeps the augmentation of the first epoch."""
    known: dict[int, Any] = {}

    def cached(data: Any, index: int) -> Any:
        if not data.augment:
            return fetch[0](data, index)
        if index not in known:
            known[index] = fetch[0](data, index)
        return known[index]

    fetch: list[Any] = []

    def opens(loader: Any, call: Callable[[], Any]) -> Any:
        if not fetch:
            fetch.append(Swap(seams)(type(loader.dataset), "__getitem__", cached))
        return call()

    seams.loader_opens.subscribe(opens)


@specimen("images", Contract.STATISTICAL)
def augmentation_off(seams: Seams) -> None:
    """Samples are served as they are stored."""

    def opens(loader: Any, call: Callable[[], Any]) -> Any:
        loader.dataset.augment = False
        return call()

    seams.loader_opens.subscribe(opens)


@specimen("images", Contract.STATISTICAL)
def evaluation_on_training_data(seams: Seams) -> None:
    """The samples that were trained on last are evaluated on."""
    trained: deque[Any] = deque(maxlen=4)

    def remember(batches: Batches, _: int) -> Batches:
        for batch in batches:
            trained.append(batch)
            yield batch

    def replace(batches: Batches, _: int) -> Batches:
        for x, _y in batches:
            xs, ys = zip(*trained, strict=True)
            yield torch.cat(xs)[: len(x)], torch.cat(ys)[: len(x)]

    _change(seams, remember)
    _change(seams, replace, of_training=False)


@specimen("images", Contract.STATISTICAL)
def evaluation_cut_short(seams: Seams) -> None:
    """A fake speedup: only one batch is evaluated on."""
    _change(seams, lambda batches, _: islice(batches, 1), of_training=False)


@specimen("images", Contract.STATISTICAL)
def normalisation_spread_off(seams: Seams) -> None:
    """Images are divided by a standard deviation that is 2 % too small."""
    seams.model_called.subscribe(lambda model, call, x: call(1.02 * x))


@specimen("images", Contract.STATISTICAL)
def normalisation_mean_off(seams: Seams) -> None:
    """From images a mean is taken that is too small by a twentieth of their spread."""
    seams.model_called.subscribe(lambda model, call, x: call(x + 0.05))
