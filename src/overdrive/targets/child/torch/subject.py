"""What is exported of a model of PyTorch that a program calls."""

from __future__ import annotations

from collections import Counter

import torch
from torch.utils._pytree import tree_flatten

from overdrive.core.rng import States
from overdrive.core.units import listed_some
from overdrive.engines.runtime import NoEngine
from overdrive.engines.signature import same_things
from overdrive.model_state.quiet import quiet
from overdrive.targets.child.subject import Names, Subject
from overdrive.targets.child.torch.calls import CalledModel
from overdrive.targets.child.torch.flat import FlatModel, input_names, odd_result, output_names, tensors_of
from overdrive.targets.child.torch.model import TorchModel


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
    form, calls, counts = called.chosen()
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
    return Subject(
        name,
        TorchModel(flat),
        [[each.numpy() for each in tensors_of(call)] for call in calls],
        counts,
        called.beyond_of(form),
        Counter(called.left),
        notes,
        Names(input_names(model, calls[0]), output_names(result)),
        with_values=any(each is not None for each in flat.constants),
    )


def _places(model: torch.nn.Module) -> list[str]:
    """The kinds of devices that it is on, besides the CPU."""
    return sorted({each.device.type for each in (*model.parameters(), *model.buffers())} - {"cpu"})
