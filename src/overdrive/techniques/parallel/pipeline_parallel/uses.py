"""Which weights a call uses in which order, and which stage each is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from overdrive.core.runs import equal_runs
from overdrive.seams.torch.blocks import repeated_blocks
from overdrive.seams.torch.modules import own_parameters


class Uses(TorchFunctionMode):
    """Attributes: `order`: names of weights, at each function that took them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(each): name for name, each in model.named_parameters()}
        self.order: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") != "__get__":
            for each in pytree.tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor) and id(each) in self._names:
                    self.order.append(self._names[id(each)])
        return function(*args, **(kwargs or {}))


def stages_of(model: nn.Module, order: Sequence[str], ranks: int) -> dict[str, tuple[int, bool]]:
    """By a weight's name, its stage, and whether functions that take it belong there: one that several stages use is
    sent to them. Empty where there are fewer layers than ranks.

    A stage is a run of layers in the order of their use; the blocks that a model repeats are not cut through. The
    largest stage is as small as can be.
    """
    sizes = {name: each.nbytes for name, each in model.named_parameters()}
    layer_of = layers_of(model)
    layers: dict[nn.Module, list[str]] = {}
    for name in dict.fromkeys(order):
        layers.setdefault(layer_of[name], []).append(name)
    runs = equal_runs([sum(sizes[name] for name in names) for names in layers.values()], ranks)
    if runs is None:
        return {}
    stage_of = {name: stage for stage, names in zip(runs, layers.values(), strict=True) for name in names}
    alone, furthest = dict.fromkeys(stage_of, True), 0
    for name in order:
        furthest = max(furthest, stage_of[name])
        alone[name] &= stage_of[name] == furthest
    return {name: (stage, alone[name]) for name, stage in stage_of.items()}


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """By a weight's name, the repeated block that it is in, or its module."""
    layers: dict[int, nn.Module] = {}
    for block in repeated_blocks(model):
        for each in block.parameters():
            layers.setdefault(id(each), block)
    for module in model.modules():
        for each in own_parameters(module):
            layers.setdefault(id(each), module)
    return {name: layers[id(each)] for name, each in model.named_parameters()}
