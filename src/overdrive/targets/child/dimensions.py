"""Which dimensions of a model's inputs may vary: those that did, and the batch; and calls of other sizes to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from overdrive.engines.runtime import Array

Arrays = Sequence[Array]
Marks = list[set[int]]  # by input, its dimensions that may vary
Limits = Mapping[str, Mapping[str, int]]  # of dimensions that may vary: "min", and "max" once it is known
_FURTHEST = 64  # times the largest recorded size that the model is tried with
_LONG = 0.2  # seconds of a call, after which no larger size is tried: neither time nor memory is to run out


def candidates(calls: Sequence[Arrays], outputs: Arrays) -> Marks:
    """`outputs`: what the model answers to the first."""
    first = calls[0]
    marks: Marks = [
        {place for place in range(each.ndim) if len({call[number].shape[place] for call in calls}) > 1}
        for number, each in enumerate(first)
    ]
    leading = [each.shape[0] for each in outputs if each.ndim]
    batch = first[0].shape[0] if first[0].ndim else None
    if batch is not None and leading and all(each == batch for each in leading):
        for number, each in enumerate(first):
            if each.ndim and each.shape[0] == batch:
                marks[number].add(0)
    return marks


def example(first: Arrays, marks: Marks) -> list[Array]:
    """Zeros of its shapes, which is all that exporting looks at. A size of one would be taken for fixed."""
    made = []
    for array, places in zip(first, marks, strict=True):
        shape = [2 if place in places and size == 1 else size for place, size in enumerate(array.shape)]
        made.append(np.zeros(shape, array.dtype))
    return made


def end_tried(
    shapes: Sequence[Sequence[int | str]],
    calls: Sequence[Arrays],
    name: str,
    limits: Limits,
    takes: Callable[[Arrays], bool],
) -> tuple[int, bool]:
    """The largest size of this name that the model takes, as far as it was tried; and whether it may take larger ones.
    A table of positions has an end that no shape tells."""
    largest = max(calls, key=lambda each: (sizes_of(shapes, each) or {})[name])
    low = (sizes_of(shapes, largest) or {})[name]
    for other in limits:
        if other != name:
            largest = [
                _resized(shape, each, other, limits[other]["min"]) for shape, each in zip(shapes, largest, strict=True)
            ]

    def tried(size: int) -> bool:
        return takes([_resized(shape, each, name, size) for shape, each in zip(shapes, largest, strict=True)])

    most, high, began = low * _FURTHEST, 2 * low, time.perf_counter()
    while tried(high):
        if high >= most or time.perf_counter() - began > _LONG:
            return high, True
        low, high, began = high, 2 * high, time.perf_counter()
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tried(middle) else (low, middle)
    return low, False


def name_of(place: int, known: Mapping[Any, str]) -> str:
    """For a dimension that may vary. `place`: of the dimension in its input; `known`: names that are given already."""
    return "batch" if place == 0 and not known else f"size_{len(known)}"


def sizes_of(shapes: Sequence[Sequence[int | str]], arrays: Arrays) -> dict[str, int] | None:
    """What these arrays give the names; None where they are not of these shapes."""
    return named(shapes, [each.shape for each in arrays])


def named(shapes: Sequence[Sequence[int | str]], given: Sequence[Sequence[int]]) -> dict[str, int] | None:
    """The same, of shapes."""
    sizes: dict[str, int] = {}
    for shape, own in zip(shapes, given, strict=True):
        if len(shape) != len(own):
            return None
        for wanted, size in zip(shape, own, strict=True):
            if (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted) != size:
                return None
    return sizes


def tied(shapes: Sequence[Sequence[int | str]], calls: Sequence[Arrays]) -> list[list[int | str]]:
    """The same, where dimensions that were equal in each of these calls have one name: they may vary together."""
    sizes = [sizes_of(shapes, each) or {} for each in calls]
    first: dict[tuple[int, ...], str] = {}
    names = {name: first.setdefault(tuple(each[name] for each in sizes), name) for name in sizes[0]}
    return [[names[each] if isinstance(each, str) else each for each in shape] for shape in shapes]


def within(limits: Limits, sizes: Mapping[str, int] | None) -> bool:
    """Whether the artefact takes these."""
    return sizes is not None and all(
        each["min"] <= sizes[name] <= each.get("max", sizes[name]) for name, each in limits.items()
    )


# Small ones, the next ones, and one of the middle, even or odd: what holds at two ends need not between.
_OTHERS: Sequence[Callable[[int], int]] = (
    *(lambda size: 1, lambda size: 2, lambda size: 3),
    *(lambda size: size - 1, lambda size: size + 1),
    *(lambda size: size // 4 * 2, lambda size: size // 4 * 2 + 1),
)


def others(shapes: Sequence[Sequence[int | str]], calls: Sequence[Arrays]) -> Iterator[Arrays]:
    """Recorded inputs with another size of each name: rows of theirs, repeated where there are too few."""
    names = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
    number = 0
    for name in names:
        for change in _OTHERS:
            arrays = calls[number % len(calls)]
            number += 1
            now = (sizes_of(shapes, arrays) or {})[name]
            size = change(now)
            if size >= 1 and size != now:
                yield [_resized(shape, each, name, size) for shape, each in zip(shapes, arrays, strict=True)]


def _resized(shape: Sequence[int | str], array: Array, name: str, size: int) -> Array:
    for place, each in enumerate(shape):
        if each == name:
            array = np.take(array, np.arange(size) % array.shape[place], axis=place)
    return array
