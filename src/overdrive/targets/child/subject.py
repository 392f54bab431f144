"""What is exported of a model that a program calls: the calls of one form, and what of all others is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from overdrive.core.rng import States
from overdrive.core.units import listed_some
from overdrive.engines.runtime import NoEngine
from overdrive.engines.signature import same_things
from overdrive.model_state.quiet import quiet
from overdrive.targets.child import dimensions, formats
from overdrive.targets.child.calls import Call, CalledModel
from overdrive.targets.child.flat import FlatModel, input_names, odd_result, output_names, tensors_of

Tensors = list[torch.Tensor]
Shapes = list[list[int | str]]


@dataclass
class Subject:
    """What is exported: the model in evaluation mode on the CPU, and recorded calls of one form, the most usual first.

    Attributes:
        counts: calls that the program made, by recorded call's shape, in the order of `calls`.
    """

    name: str
    flat: FlatModel
    calls: list[Call]
    counts: list[int]
    beyond: Mapping[tuple[torch.Size, ...], int]  # calls of the same form of which no inputs are kept, by their sizes
    left: Counter[str]
    notes: list[str]
    names: formats.Names

    def inputs(self, shapes: Shapes) -> list[Tensors]:
        """Of the recorded calls that are of these shapes."""
        given = [tensors_of(each) for each in self.calls]
        return [each for each in given if dimensions.sizes_of(shapes, each) is not None]


def subject_of(called: CalledModel, name: str) -> Subject:
    """
    Raises:
        NoEngine: no artefact can answer as it does.
    """
    notes = []
    if places := _places(called.model):
        notes.append(
            f"the program calls it on {' and '.join(places)}: all times here are of the CPU, PyTorch's own too"
        )
    if called.autocasts:
        kinds = " and ".join(sorted(called.autocasts))
        notes.append(f"the program calls it under autocast ({kinds}): here all compute in the types of its weights")
    if called.compiled:
        notes.append("the program compiles it: PyTorch's own times here are of the model as it is written")
    if called.training:
        parts = listed_some(sorted(called.training))
        notes.append(f"the program has {parts} in training mode where it calls it: this is what it is after eval()")
    model = called.model.cpu()
    if not called.evaluated:
        notes.append("the program calls the model in training mode alone; this is what it is after eval()")
    model.eval()
    forms: Counter[Any] = Counter()
    for each in called.shapes.values():
        forms[each.form] += each.count
    for (form, _), count in called.beyond.items():
        forms[form] += count
    chosen = max((each.form for each in called.shapes.values()), key=lambda form: forms[form])
    left = Counter(called.left)
    left["they have other inputs that are no tensors, or tensors of other types"] += forms.total() - forms[chosen]
    calls: list[Call] = []
    counts: list[int] = []
    for shape in sorted(called.shapes.values(), key=lambda each: -each.count):
        if shape.form != chosen:
            continue
        calls += shape.kept
        counts += [shape.count, *[0] * (len(shape.kept) - 1)]
    flat = FlatModel(model, calls[0])
    chance = States.now()
    with torch.no_grad(), quiet():
        args, kwargs = flat.arguments(tensors_of(calls[0]))
        before = tree_flatten((args, kwargs))
        result = model(*args, **kwargs)
    if not same_things(before, (args, kwargs)):
        raise NoEngine("it writes to what it is given, which no artefact does")
    if not chance.same(States.now()):
        raise NoEngine("it draws random numbers in its call, and another engine's would be others")
    if odd := odd_result(result):
        raise NoEngine(f"it returns {odd}")
    names = formats.Names(input_names(model, calls[0]), output_names(result))
    beyond = {sizes: count for (form, sizes), count in called.beyond.items() if form == chosen}
    return Subject(name, flat, calls, counts, beyond, left, notes, names)


def _places(model: torch.nn.Module) -> list[str]:
    """The kinds of devices that it is on, besides the CPU."""
    return sorted({each.device.type for each in (*model.parameters(), *model.buffers())} - {"cpu"})
