"""Calls that differ in the sizes of their inputs alone, and the one engine that may answer all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.engines.ranges import Bounds
from overdrive.engines.runtime import Engine, Place
from overdrive.engines.signature import Signature
from overdrive.engines.tally import Tally

_OWN = 4  # sizes that have an engine each: one that is built for a size is faster than one for all


class Sizes:
    """Those that calls of one form came in."""

    def __init__(self) -> None:
        self.stiff = False  # no engine can be built for several
        self._first: Sequence[Sequence[int]] = ()
        self._places: set[Place] = set()
        self._count = 0

    def note(self, given: Signature) -> None:
        """A size that has not come before."""
        self._count += 1
        sizes = [each.shape for each in given.tensors]
        self._first = self._first or sizes
        for number, (one, other) in enumerate(zip(self._first, sizes, strict=True)):
            self._places |= {(number, dim) for dim, size in enumerate(one) if size != other[dim]}

    def varying(self, given: Signature) -> Sequence[Place]:
        """Where an engine built from this call has to take other sizes; empty where each has one of its own.

        `torch.export` takes a size of one for a constant.
        """
        if self.stiff or self._count <= _OWN:
            return ()
        if any(given.tensors[number].shape[dim] < 2 for number, dim in self._places):
            return ()
        return sorted(self._places)


@dataclass(frozen=True)
class Wide:
    """An engine for several sizes. Each is proved by itself."""

    engine: Engine
    form: Any
    sizes: Sequence[Sequence[int]]  # that it was built from
    places: frozenset[Place]  # where there may be others
    bounds: Bounds
    tally: Tally

    @classmethod
    def of(cls, engine: Engine, given: Signature, places: Sequence[Place], bounds: Bounds, tally: Tally) -> Wide:
        return cls(engine, given.form, [each.shape for each in given.tensors], frozenset(places), bounds, tally)

    def fits(self, given: Signature) -> bool:
        return given.form == self.form and all(
            size == own or (number, dim) in self.places
            for number, (sizes, tensor) in enumerate(zip(self.sizes, given.tensors, strict=True))
            for dim, (own, size) in enumerate(zip(sizes, tensor.shape, strict=True))
        )


def as_exported(given: Signature, places: Sequence[Place], model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """Which dimensions may vary, as `torch.export` takes it; None where none does."""
    if not places:
        return None
    found = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for number, tensor in enumerate(given.tensors):
        if dims := {dim: torch.export.Dim.AUTO for place, dim in places if place == number}:
            found[tensor] = dims
    return found.dynamic_shapes(model, args, kwargs)  # type: ignore[no-untyped-call]


def vary(graph: Any, places: Sequence[Place]) -> bool:
    """Whether as many dimensions of its inputs vary as were asked for: the exporter may have fixed some."""
    inputs = set(graph.graph_signature.user_inputs)
    values = [each.meta.get("val") for each in graph.graph.nodes if each.op == "placeholder" and each.name in inputs]
    shapes = [each.shape for each in values if isinstance(each, torch.Tensor)]
    return sum(not isinstance(size, int) for shape in shapes for size in shape) == len(places)
