"""Finds a data set's list of transforms and cuts it: the head is done once a sample, the tail on whole batches.

The head's results come from a copy of the data set (of every object on the way to the list; what they hold is shared)
whose list is our `Head` alone. That each image comes out of the data set as the head gave it is looked at for every
sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from overdrive.datacache.layout import Unfit
from overdrive.datacache.source import Source
from overdrive.datacache.table import bytes_of
from overdrive.samples.batchwise.known import draws, step_of
from overdrive.samples.batchwise.pictures import mode_of, to_tensor
from overdrive.samples.batchwise.tail import Tail

# A data set's transforms lie near the surface; lists of samples and labels are longer.
_DEEPEST = 8
_LONGEST = 64


@dataclass(frozen=True)
class HeadSource(Source):
    """Samples as they are before the tail. `whole`: the program's own source, `chain`: its list of transforms."""

    whole: Source
    chain: Any
    head: Head
    tail: Tail

    @classmethod
    def of(cls, loader: Any) -> HeadSource:
        """
        Raises:
            Unfit: as `Source.of`; or no list of transforms is found that draw random numbers and can be cut.
        """
        whole = Source.of(loader)
        chain = find(whole.dataset)
        head, tail = cut(chain)
        if tail.own and whole.workers:
            slow = type(tail.own[-1]).__name__
            raise Unfit(f"its transform {slow} is done image by image, which its workers do side by side")
        derived = with_other(whole.dataset, chain, type(chain)([head]))
        how = (whole.workers, whole.prepare_worker, whole.batch_size)
        return cls(derived, whole.collate, *how, whole=whole, chain=chain, head=head, tail=tail)

    @property
    def roots(self) -> Any:
        """With the original, whose attributes may be set without our copy's knowing."""
        return *super().roots, *self.whole.roots, "head"

    def same(self, other: Source) -> bool:
        alike = isinstance(other, HeadSource) and self.whole.same(other.whole) and self.chain is other.chain
        return alike and (self.share is None or self.share.same(other.share))

    @property
    def by_index(self) -> HeadSource:
        """The same, whose rows are the data set's own indices."""
        return replace(self, share=None)

    def fetch(self, rows: list[int]) -> Any:
        """
        Raises:
            Unfit: the data set does more to an image than to put it into its sample, or the loader than to stack.
        """
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        def collate(samples: list[Any]) -> Any:
            given = list(self.head.given)
            if len(given) != len(samples) or not all(map(_holds, samples, given)):
                raise Unfit("its images do not come out of its transforms once and unchanged")
            batch = self.collate(samples)
            leaf = leaf_of(batch, given)
            if self.tail.leaf not in (None, leaf):
                raise Unfit("its images do not always lie in the same place of a batch")
            self.tail.leaf = leaf
            (self.tail.mode,) = self.head.modes  # a batch of several does not stack
            return batch

        self.head.forget()
        try:
            return _MapDatasetFetcher(self.dataset, True, collate, False).fetch(self.indices(rows))  # type: ignore[no-untyped-call]
        finally:
            self.head.forget()


class Head:
    """Stands in the place of all transforms, does the first of them, and notes what came out.

    A picture is turned into a tensor of bytes here, for flips and crops, which only move pixels, come to the same
    before and after that.

    Attributes:
        given: what came out for the batch that is being fetched.
        modes: of the pictures that it was made of; None for a tensor.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = list(transforms)
        self.given: list[Any] = []
        self.modes: set[str | None] = set()

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        tensor = to_tensor(image)
        self.given.append(tensor)
        self.modes.add(mode_of(image))
        return tensor

    def forget(self) -> None:
        self.given.clear()
        self.modes.clear()


def find(dataset: Any) -> Any:
    """The one list of transforms in this data set of which some are known to draw random numbers.

    Raises:
        Unfit: there is none, or more than one.
    """
    found: list[Any] = []
    seen: dict[int, Any] = {}
    level = [dataset]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for thing in level:
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            if type(thing) in (list, tuple) and any(map(draws, thing)):
                found.append(thing)
            else:
                below += _parts(thing).values()
        level = below
    if not found:
        raise Unfit("no list of known random transforms was found in its data set")
    if len(found) > 1:
        raise Unfit("its data set has more than one list of random transforms")
    return found[0]


def cut(chain: Sequence[Any]) -> tuple[Head, Tail]:
    """Before the first that is known to draw, and after the last that is not known on whole batches.

    Raises:
        Unfit: nothing is left after that one.
    """
    steps = [step_of(transform) for transform in chain]
    first = next(number for number, transform in enumerate(chain) if draws(transform))
    rest = max((number + 1 for number, step in enumerate(steps) if step is None and number >= first), default=first)
    if rest == len(chain):
        raise Unfit(f"its transform {type(chain[-1]).__name__} is not known on whole batches")
    return Head(chain[:first]), Tail([step for step in steps[rest:] if step is not None], chain[first:rest])


def with_other(thing: Any, old: Any, new: Any, depth: int = 0) -> Any:
    """A copy of `thing` with `new` in the place of `old`, wherever that is found; itself where it is not."""
    return _with_other(thing, old, new, {}, depth)


def _with_other(thing: Any, old: Any, new: Any, done: dict[int, tuple[Any, Any]], depth: int) -> Any:
    if thing is old:
        return new
    if id(thing) in done:
        return done[id(thing)][1]
    done[id(thing)] = thing, thing  # for a circle back to itself; and what is kept here keeps its id
    if depth < _DEEPEST:
        parts = _parts(thing)
        others = {name: _with_other(part, old, new, done, depth + 1) for name, part in parts.items()}
        changed = {name: other for name, other in others.items() if other is not parts[name]}
        if changed:
            done[id(thing)] = thing, _copy_with(thing, changed)
    return done[id(thing)][1]


def _copy_with(thing: Any, changed: dict[Any, Any]) -> Any:
    if type(thing) in (list, tuple):
        return type(thing)(changed.get(place, each) for place, each in enumerate(thing))
    if type(thing) is dict:
        return {**thing, **changed}
    try:
        copy = object.__new__(type(thing))
    except TypeError:
        raise Unfit(f"its {type(thing).__name__} cannot be copied") from None
    copy.__dict__.update({**vars(thing), **changed})
    return copy


_LEAVES = (type, FunctionType, ModuleType, str, bytes, int, float, complex, np.ndarray, np.generic)


def _parts(thing: Any) -> dict[Any, Any]:
    """What an object holds, by name or place: attributes, and the items of short lists and dicts."""
    import torch

    if thing is None or isinstance(thing, (*_LEAVES, torch.Tensor, torch.Generator)):
        return {}
    if type(thing) in (list, tuple):
        return dict(enumerate(thing)) if len(thing) <= _LONGEST else {}
    if type(thing) is dict:
        return thing if len(thing) <= _LONGEST else {}
    space = getattr(thing, "__dict__", None)
    return space if type(space) is dict else {}


def _holds(sample: Any, tensor: Any) -> bool:
    """Whether a sample has this very tensor in it, once."""
    return _count(sample, tensor) == 1


def _count(thing: Any, tensor: Any) -> int:
    if thing is tensor:
        return 1
    if isinstance(thing, dict):
        thing = list(thing.values())
    return sum(_count(each, tensor) for each in thing) if isinstance(thing, (list, tuple)) else 0


def leaf_of(batch: Any, given: Sequence[Any]) -> int:
    """Which tensor of a batch is these images, stacked.

    Raises:
        Unfit: none, or more than one.
    """
    found = [number for number, tensor in enumerate(_tensors(batch)) if _is_stack(tensor, given)]
    if len(found) != 1:
        raise Unfit("its batches are more than images stacked (padded, mixed or sorted, perhaps)")
    return found[0]


def _tensors(batch: Any) -> list[Any]:
    from overdrive.datacache.layout import layout_of, tensors_of

    return tensors_of(batch, layout_of(batch).structure) or []


def _is_stack(tensor: Any, given: Sequence[Any]) -> bool:
    if len(tensor) != len(given) or any(tensor.dtype != each.dtype or tensor.shape[1:] != each.shape for each in given):
        return False
    stacked = bytes_of(tensor)
    return all(np.array_equal(row, bytes_of(each[None])[0]) for row, each in zip(stacked, given, strict=True))
