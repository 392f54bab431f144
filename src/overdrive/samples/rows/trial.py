"""Finds out, in a forked process, whether and of which arrays a data set's samples are rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from overdrive.core.progress import progress
from overdrive.core.rng import States, reseed
from overdrive.datacache.effects import only_reading
from overdrive.datacache.fingerprint import fingerprint
from overdrive.datacache.forked import Tick, in_child
from overdrive.datacache.layout import Layout, Unfit, layout_of, orders
from overdrive.datacache.source import Source, spread
from overdrive.datacache.table import same_bits
from overdrive.samples.rows.slices import (
    INDEX,
    LIST,
    NUMBERS,
    ROWS,
    TURNED,
    Origin,
    Slices,
    Step,
    dtype_of,
    numbers_of,
    rows_of,
    unwrapped,
)

# Samples are tried for so long, 12 of them at least; a `TensorDataset` gets through 50,000.
_SECONDS = 0.5
_SAMPLES = 12
_LARGEST_BATCH = 64
_DEEPEST = 4
_MOST_OBJECTS = 1000
# Added to numbers in a trial: labels above all that there are show whether they are handed on as they are.
_ABOVE = 1000


def slices_of(source: Source) -> Slices:
    """
    Raises:
        Unfit: its samples are no rows of arrays; with the reason.
    """
    from torch.utils.data import default_collate

    if source.workers:
        raise Unfit("its batches are made by workers, which see the arrays as they were when an epoch began")
    if source.collate is not default_collate:
        raise Unfit("it puts batches together in a way of its own")
    root, _ = unwrapped(source.dataset)
    if callable(getattr(root, "__getitems__", None)):
        raise Unfit("its data set fetches whole batches by itself")
    seen = fingerprint(*source.roots, content=False)
    told = in_child(lambda tick: _examine(source, tick), lambda _: progress(0, len(source.dataset)))
    origins = [
        Origin(each["kind"], tuple((kind, key) for kind, key in each["path"]), tuple(each["order"]))
        for each in told["origins"]
    ]
    return Slices(source, seen, Layout.from_json(told["layout"]), origins)


@only_reading()
def _examine(source: Source, tick: Tick) -> dict[str, Any]:
    root, _ = unwrapped(source.dataset)
    count = len(source.dataset)
    tried = spread(count, _SAMPLES)
    before = fingerprint(*source.roots, content=False).digest
    reseed(1)
    states = States.now(with_cuda=False)
    candidates = _candidates(root, source, tried, tick)
    if not states.same(States.now(with_cuda=False)):
        raise Unfit("fetching a sample draws random numbers")
    if fingerprint(*source.roots, content=False).digest != before:
        raise Unfit("fetching a sample changes the data set")
    batch = source.fetch(tried)
    layout = layout_of(batch)
    if len(layout.leaves) != len(candidates):
        raise Unfit("its batches are not built as its samples are")
    origins = [_chosen(source, root, place, each) for place, each in enumerate(candidates)]
    slices = Slices(source, fingerprint(*source.roots, content=False), layout, origins)
    for indices in (tried, tried[::-1][:5], tried[:1], (tried * _LARGEST_BATCH)[: source.batch_size or 1]):
        ours = slices.gather(slices.rows(indices))
        if ours is None or not same_bits(source.fetch(indices), ours, layout):
            raise Unfit("its batches are more than rows put together")
    return {
        "layout": layout.to_json(),
        "origins": [{"kind": each.kind, "path": list(each.path), "order": list(each.order)} for each in origins],
    }


def _candidates(root: Any, source: Source, tried: list[int], tick: Tick) -> list[list[Origin]]:
    """For each part of a sample, where it may come from: what holds for all samples that there is time for."""
    reachable = _reachable(root)
    first = _flat(source.dataset[tried[0]])
    candidates = [_possible(part, reachable) for part in first]
    limit = time.monotonic() + _SECONDS
    last = time.monotonic()
    for number, index in enumerate(_all_of(tried, len(source.dataset))):
        if number >= len(tried) and time.monotonic() > limit:
            break
        sample = _flat(source.dataset[index])
        row = _row(source, index)
        if len(sample) != len(first):
            raise Unfit("its samples differ in kind")
        for place, part in enumerate(sample):
            left = candidates[place]
            if len(left) != 1 or not left[0][1].holds(part, row):
                candidates[place] = left = [each for each in left if each[1].holds(part, row)]
            if not left:
                raise Unfit(_why_not(part))
        if time.monotonic() - last > 1.0:
            last = time.monotonic()
            tick(1)
    return [[origin for origin, _ in each] for each in candidates]


def _all_of(tried: list[int], count: int) -> Iterable[int]:
    yield from tried
    yield from range(count)


def _row(source: Source, index: int) -> int:
    for subset in unwrapped(source.dataset)[1]:
        index = int(subset.indices[index])
    return index


def _flat(sample: Any) -> list[Any]:
    """The parts of a sample, in the order of a batch's tensors."""
    if isinstance(sample, (tuple, list)):
        return [part for each in sample for part in _flat(each)]
    if isinstance(sample, dict):
        return [part for each in sample.values() for part in _flat(each)]
    return [sample]


def _why_not(part: Any) -> str:
    kind = type(part).__name__
    return f"a part of its samples ({kind}) is no slice of an array of the data set, but copied or computed"


class _Test:
    """Whether a part of a sample is what a thing holds at its row. Things are looked at once: 50,000 samples."""

    def __init__(self, origin: Origin, thing: Any) -> None:
        kind = self.kind = origin.kind
        self.thing = thing
        if kind in (ROWS, TURNED):
            held = rows_of(thing, origin.order if kind == ROWS else ())
            assert held is not None
            self.address = held.__array_interface__["data"][0]
            self.size = held.shape[1]
            self.dtype = dtype_of(thing)
            row = thing[0]
            if kind == TURNED:
                row = row.permute(-1, *range(row.ndim - 1)) if hasattr(row, "permute") else np.moveaxis(row, -1, 0)
            self.shape, self.steps = tuple(row.shape), _steps(row)
        elif kind == NUMBERS:
            self.thing = numbers_of(thing).tolist()

    def holds(self, part: Any, row: int) -> bool:
        if row < 0 or (self.kind != INDEX and row >= len(self.thing)):
            return False
        if self.kind not in (ROWS, TURNED):
            value = part.item() if hasattr(part, "item") else part
            held = row if self.kind == INDEX else self.thing[row]
            return type(held) is type(value) and (held == value or (held != held and value != value))
        address = part.data_ptr() if hasattr(part, "data_ptr") else part.__array_interface__["data"][0]
        return bool(
            address == self.address + row * self.size
            and tuple(part.shape) == self.shape
            and _steps(part) == self.steps
            and dtype_of(part) == self.dtype
        )


def _steps(thing: Any) -> tuple[int, ...]:
    """Its strides in elements; 0 for dimensions of size 1, whose strides say nothing."""
    strides = thing.stride() if hasattr(thing, "data_ptr") else [step // thing.itemsize for step in thing.strides]
    return tuple([step if size > 1 else 0 for step, size in zip(strides, thing.shape, strict=True)])


def _possible(part: Any, reachable: list[tuple[tuple[Step, ...], Any]]) -> list[tuple[Origin, _Test]]:
    """All that could give parts of this kind."""
    import torch

    array = type(part) is torch.Tensor or type(part) in (np.ndarray, np.memmap)
    number = type(part) in (int, float, bool) or isinstance(part, np.generic) or (array and part.ndim == 0)
    origins: list[tuple[Origin, Any]] = []
    for path, thing in reachable:
        if array and type(thing) is not list:
            origins += [(origin, thing) for origin in _rows(path, thing)]
        if number and type(thing) is list:
            origins.append((Origin(LIST, path), thing))
        elif number and numbers_of(thing) is not None:
            origins.append((Origin(NUMBERS, path), thing))
    if number:
        origins.append((Origin(INDEX), None))
    return [(origin, _Test(origin, thing)) for origin, thing in origins]


def _rows(path: tuple[Step, ...], thing: Any) -> list[Origin]:
    """As what a sample may be a row of this array or tensor."""
    *others, last = orders(thing.ndim)
    found = [Origin(ROWS, path, order) for order in (*others, last) if rows_of(thing, order) is not None][:1]
    if others and rows_of(thing) is not None:
        found.append(Origin(TURNED, path, last))
    return found


def _reachable(root: Any) -> list[tuple[tuple[Step, ...], Any]]:
    """Arrays, tensors and lists of numbers among an object's attributes, and how to get there."""
    import torch

    found: list[tuple[tuple[Step, ...], Any]] = []
    pending: list[tuple[tuple[Step, ...], Any]] = [((), root)]
    seen = 0
    while pending and seen < _MOST_OBJECTS:
        path, thing = pending.pop(0)
        seen += 1
        kind = type(thing)
        numbers = kind is list and thing and type(thing[0]) in (int, float, bool)
        if numbers or kind in (torch.Tensor, np.ndarray, np.memmap):
            found.append((path, thing))
        elif len(path) < _DEEPEST:
            pending += [((*path, step), each) for step, each in _inside(thing)]
    return found


def _inside(thing: Any) -> list[tuple[Step, Any]]:
    if type(thing) in (list, tuple):
        return [(("item", key), each) for key, each in enumerate(thing[:_MOST_OBJECTS])]
    if type(thing) is dict:
        return [(("item", key), each) for key, each in thing.items() if type(key) in (str, int)]
    if isinstance(thing, (type, ModuleType)) or (callable(thing) and not hasattr(type(thing), "__getitem__")):
        return []
    space = getattr(thing, "__dict__", None)
    return [(("attribute", name), each) for name, each in space.items()] if isinstance(space, dict) else []


def _chosen(source: Source, root: Any, place: int, candidates: list[Origin]) -> Origin:
    """The one that samples really come from: they follow where another thing is put in its place."""
    for origin in candidates:
        if origin.kind == INDEX or all(_follows(source, root, place, origin, other) for other in _others(origin, root)):
            return origin
    raise Unfit("a part of its samples does not follow its array, but is copied or computed")


def _others(origin: Origin, root: Any) -> list[Any]:
    """Stand-ins: everything one row further on; and for numbers, such as there are none of."""
    thing = origin.find(root)
    if len(thing) < 2:
        raise Unfit("it has a single sample")
    others = [thing[1:]]
    if origin.kind == LIST:
        others.append([each if type(each) is bool else each + _ABOVE for each in thing])
    elif origin.kind == NUMBERS and dtype_of(thing) not in ("bool", "int8", "uint8"):
        others.append(thing + _ABOVE)
    return others


def _follows(source: Source, root: Any, place: int, origin: Origin, other: Any) -> bool:
    index = next((each for each in range(len(source.dataset)) if _row(source, each) < len(other)), None)
    before = origin.find(root)
    _put(root, origin.path, other)
    try:
        part = _flat(source.dataset[index])[place]
        return index is not None and _Test(origin, other).holds(part, _row(source, index))
    except Exception:
        return len(other) == len(before)  # labels that name something, say, cannot be any number
    finally:
        _put(root, origin.path, before)


def _put(root: Any, path: tuple[Step, ...], thing: Any) -> None:
    *before, (kind, key) = path
    owner = Origin("", tuple(before)).find(root)
    if kind == "attribute":
        vars(owner)[key] = thing
    elif type(owner) is tuple:
        _put(root, tuple(before), (*owner[:key], thing, *owner[key + 1 :]))
    else:
        owner[key] = thing
