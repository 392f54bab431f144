"""Which dimensions of a model's inputs may vary: those that did, and the batch; and calls of other sizes to try."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from overdrive.targets.child.calls import Call
from overdrive.targets.child.flat import tensors_of

Marks = list[set[int]]  # by input tensor, its dimensions that may vary
Limits = Mapping[str, Mapping[str, int]]  # of dimensions that may vary: "min", and "max" once it is known
_ENDLESS = 1 << 48
_FURTHEST = 64  # times the largest recorded size that the model is tried with
_LONG = 0.2  # seconds of a call, after which no larger size is tried: neither time nor memory is to run out


def candidates(calls: Sequence[Call], outputs: Sequence[torch.Tensor], first: Call) -> Marks:
    """`outputs`: what the model answers to `first`."""
    tensors = tensors_of(first)
    marks: Marks = [
        {place for place in range(each.dim()) if len({tensors_of(call)[number].shape[place] for call in calls}) > 1}
        for number, each in enumerate(tensors)
    ]
    leading = [each.shape[0] for each in outputs if each.dim()]
    batch = tensors[0].shape[0] if tensors[0].dim() else None
    if batch is not None and leading and all(each == batch for each in leading):
        for number, each in enumerate(tensors):
            if each.dim() and each.shape[0] == batch:
                marks[number].add(0)
    return marks


def example(first: Call, marks: Marks) -> list[torch.Tensor]:
    """Zeros of its shapes, which is all that exporting looks at. A size of one would be taken for fixed."""
    made = []
    for tensor, places in zip(tensors_of(first), marks, strict=True):
        shape = [2 if place in places and size == 1 else size for place, size in enumerate(tensor.shape)]
        made.append(torch.zeros(shape, dtype=tensor.dtype))
    return made


def asked(marks: Marks) -> dict[str, Any]:
    """What `torch.export` is asked for; where the model does not allow it, a dimension becomes fixed."""
    automatic = torch.export.Dim.AUTO
    return {"tensors": tuple(dict.fromkeys(sorted(places), automatic) or None for places in marks)}


def found(graph: Any) -> list[list[int | str]]:
    """The shapes of the inputs of an exported graph: numbers, and names of the dimensions that may vary."""
    return _named(_inputs(graph))


def end_in(graph: Any, shapes: Sequence[Sequence[int | str]], name: str) -> int | None:
    """The largest size of this name by what the model's code asks for; None where it asks for nothing."""
    for value, shape in zip(_inputs(graph), shapes, strict=True):
        for size, each in zip(value.shape, shape, strict=True):
            known = graph.range_constraints.get(size.node.expr) if each == name else None
            if known is not None and str(known.upper).isdigit() and int(known.upper) < _ENDLESS:
                return int(known.upper)
    return None


def end_tried(
    shapes: Sequence[Sequence[int | str]],
    calls: Sequence[list[torch.Tensor]],
    name: str,
    limits: Limits,
    takes: Callable[[list[torch.Tensor]], bool],
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


def _inputs(graph: Any) -> list[Any]:
    return [node.meta["val"] for node in graph.graph.nodes if _is_input(graph, node)]


def _is_input(graph: Any, node: Any) -> bool:
    return node.op == "placeholder" and node.name in graph.graph_signature.user_inputs


def _named(values: Sequence[Any]) -> list[list[int | str]]:
    names: dict[str, str] = {}
    shapes: list[list[int | str]] = []
    for value in values:
        shape: list[int | str] = []
        for place, size in enumerate(value.shape):
            if isinstance(size, int):
                shape.append(size)
                continue
            new = "batch" if place == 0 and not names else f"size_{len(names)}"
            shape.append(names.setdefault(str(size), new))
        shapes.append(shape)
    return shapes


def sizes_of(shapes: Sequence[Sequence[int | str]], tensors: Sequence[torch.Tensor]) -> dict[str, int] | None:
    """What these tensors give the names; None where they are not of these shapes."""
    return named(shapes, [each.shape for each in tensors])


def named(shapes: Sequence[Sequence[int | str]], given: Sequence[Sequence[int]]) -> dict[str, int] | None:
    """The same, of tensors' shapes."""
    sizes: dict[str, int] = {}
    for shape, own in zip(shapes, given, strict=True):
        if len(shape) != len(own):
            return None
        for wanted, size in zip(shape, own, strict=True):
            if (sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted) != size:
                return None
    return sizes


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


def others(shapes: Sequence[Sequence[int | str]], calls: Sequence[list[torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Recorded inputs with another size of each name: rows of theirs, repeated where there are too few."""
    names = dict.fromkeys(each for shape in shapes for each in shape if isinstance(each, str))
    number = 0
    for name in names:
        for change in _OTHERS:
            tensors = calls[number % len(calls)]
            number += 1
            now = (sizes_of(shapes, tensors) or {})[name]
            size = change(now)
            if size >= 1 and size != now:
                yield [_resized(shape, each, name, size) for shape, each in zip(shapes, tensors, strict=True)]


def _resized(shape: Sequence[int | str], tensor: torch.Tensor, name: str, size: int) -> torch.Tensor:
    for place, each in enumerate(shape):
        if each == name:
            rows = torch.arange(size) % tensor.shape[place]
            tensor = tensor.index_select(place, rows)
    return tensor
