"""Which indices PyTorch's iterators draw for their batches, how early, and a note of each."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler


def indices_of(iterator: Any) -> Iterator[Any]:
    """What it draws the indices of its batches from."""
    drawn: Iterator[Any] = iterator._sampler_iter
    return drawn


def draw_from(iterator: Any, indices: Iterator[Any]) -> None:
    iterator._sampler_iter = indices


def draws_as_torch(loader: Any) -> bool:
    """Whether the loader's indices are drawn by PyTorch's own samplers."""
    batches = loader.batch_sampler
    own = [type(each).__module__.startswith("torch.utils.data.") for each in (batches, loader.sampler)]
    return all(own) and getattr(batches, "sampler", None) is loader.sampler


def draws_unseen_by_workers(loader: Any) -> bool:
    """Whether nobody can tell how early its indices are drawn, but the first: by torch's own samplers, from nobody's
    generator or all at once."""
    if not draws_as_torch(loader):
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return sampler.generator is None
    return type(sampler) in (SequentialSampler, DistributedSampler, WeightedRandomSampler)


def can_be_peeked(loader: Any) -> bool:
    """Whether nobody can tell that indices, but the first and the last, were drawn early."""
    sampler = loader.sampler
    if not draws_as_torch(loader) or type(sampler) not in (SequentialSampler, RandomSampler, DistributedSampler):
        return False
    if getattr(sampler, "generator", None) is None:
        return True
    # One of the program's own: without replacement, it is drawn from with the first index alone.
    return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)


class Ahead:
    """Draws indices so many batches early, like a loader that keeps its workers busy.

    The sampler draws from random generators: how early it does so decides on what the program draws.
    """

    def __init__(self, indices: Iterator[Any], ahead: int) -> None:
        self.indices = indices
        self._drawn: deque[Any] = deque()
        for _ in range(ahead):
            self._draw()

    def _draw(self) -> None:
        with contextlib.suppress(StopIteration):
            self._drawn.append(next(self.indices))

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Any:
        if not self._drawn:
            raise StopIteration
        indices = self._drawn.popleft()
        self._draw()
        return indices

    def coming(self, count: int) -> list[Any]:
        """What will be handed out next, this much at most."""
        return list(islice(self._drawn, count))


class Peeking:
    """Draws a few of an iterator's indices early, but neither the first nor the last one.

    Args:
        length: how many there are.
    """

    def __init__(self, indices: Iterator[Any], length: int) -> None:
        self._indices = indices
        self._left = length
        self._drawn: deque[Any] = deque()

    def __iter__(self) -> Peeking:
        return self

    def __next__(self) -> Any:
        if self._drawn:
            return self._drawn.popleft()
        self._left -= 1
        return next(self._indices)

    def coming(self, count: int) -> list[Any]:
        """What `next` will give, this much at most. Only for one who has had the first."""
        while len(self._drawn) < count and self._left > 1:
            self._left -= 1
            self._drawn.append(next(self._indices))
        return list(self._drawn)[:count]


class Announced:
    """Tells before it hands out each."""

    def __init__(self, indices: Iterator[Any], about_to_hand_out: Callable[[], None]) -> None:
        self._indices = indices
        self._about_to_hand_out = about_to_hand_out

    def __iter__(self) -> Announced:
        return self

    def __next__(self) -> Any:
        self._about_to_hand_out()
        return next(self._indices)


def announce(iterator: Any, about_to_hand_out: Callable[[], None]) -> None:
    """Before each batch that one of its workers is given; not where that waits for the program to ask for its first."""
    if not isinstance(iterator._sampler_iter, (Gate, Announced)):
        iterator._sampler_iter = Announced(iterator._sampler_iter, about_to_hand_out)


class Noting:
    """A batch sampler that notes which indices it hands out."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.drawn: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        self.drawn.clear()
        for each in self.sampler:
            self.drawn.append(each)
            yield each

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


class Gated(Noting):
    """The same, which hands out none before the program asks for its first batch: then a sampler draws its seed."""

    def __iter__(self) -> Iterator[Any]:
        return Gate(super().__iter__())


class Gate:
    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self.open = False

    def __iter__(self) -> Gate:
        return self

    def __next__(self) -> Any:
        if not self.open:
            raise StopIteration
        return next(self._indices)


def opened_noting(loader: Any, call: Callable[[], Any], kind: type[Noting] | None = None) -> tuple[Any, deque[Any]]:
    """An iterator, and the indices of its batches as they are drawn, which may be long before these come."""
    space = loader.__dict__  # the loader refuses that this is set the usual way
    sampler = space["batch_sampler"]
    noting = (kind or Noting)(sampler)
    space["batch_sampler"] = noting
    try:
        return call(), noting.drawn
    finally:
        space["batch_sampler"] = sampler


def begin(iterator: Any, workers: bool = True) -> None:
    """The program asks for its first batch: indices are drawn from now on, and `workers` get theirs."""
    gate = iterator._sampler_iter
    if isinstance(gate, Gate) and not gate.open:
        gate.open = True
        for _ in range(iterator._prefetch_factor * iterator._num_workers if workers else 0):
            iterator._try_put_index()
