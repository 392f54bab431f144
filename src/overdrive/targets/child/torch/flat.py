"""A model as one function of its tensors: what structure they come in, and all that is no tensor, is part of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_unflatten

from overdrive.engines.signature import NUMERIC
from overdrive.targets.child import naming
from overdrive.targets.child.torch.calls import Call


class FlatModel(torch.nn.Module):
    """Takes the tensors of a call in order, and gives those of its result in order."""

    def __init__(self, model: torch.nn.Module, form: Call) -> None:
        super().__init__()
        self.model = model
        self.spec = form.spec
        self.constants = [None if isinstance(each, torch.Tensor) else each for each in form.leaves]
        self.places = [place for place, each in enumerate(form.leaves) if isinstance(each, torch.Tensor)]
        self.train(model.training)

    def arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model itself is given."""
        leaves = list(self.constants)
        for place, each in zip(self.places, tensors, strict=True):
            leaves[place] = each
        args, kwargs = tree_unflatten(leaves, self.spec)
        return args, kwargs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.arguments(tensors)
        result = self.model(*args, **kwargs)
        return tuple(each for each in tree_leaves(result) if isinstance(each, torch.Tensor))


def tensors_of(call: Call) -> list[torch.Tensor]:
    return [each for each in call.leaves if isinstance(each, torch.Tensor)]


def input_names(model: torch.nn.Module, call: Call) -> list[str]:
    """Of its tensors: the parameters' names in the model's `forward`, and where one holds several, their places."""
    args, kwargs = tree_unflatten(list(call.leaves), call.spec)
    positional = [
        name
        for name, each in inspect.signature(model.forward).parameters.items()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    names = []
    for path, leaf in tree_flatten_with_path((args, kwargs))[0]:
        if not isinstance(leaf, torch.Tensor):
            continue
        side, first, *rest = (_key(each) for each in path)
        known = side == "0" and int(first) < len(positional)
        names.append(naming.name([positional[int(first)] if known else first, *rest], "input"))
    return naming.distinct(names)


def output_names(result: Any) -> list[str]:
    """Of its tensors; a single one is `output`."""
    found = [path for path, leaf in tree_flatten_with_path(result)[0] if isinstance(leaf, torch.Tensor)]
    return naming.distinct([naming.name([_key(each) for each in path], "output") for path in found])


def odd_result(result: Any) -> str:
    """What of a result no artefact gives, in words; empty where it gives all of it."""
    leaves = tree_leaves(result)
    tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
    for each in leaves:
        if not isinstance(each, (torch.Tensor, bool, int, float, str, type(None))):
            return f"a {type(each).__name__}"
    for each in tensors:
        if type(each) is not torch.Tensor or each.dtype not in NUMERIC or each.layout is not torch.strided:
            return f"a tensor of {str(each.dtype).removeprefix('torch.')}"
    return "" if tensors else "no tensor"


def _key(entry: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return str(getattr(entry, name))
    return str(entry)
