"""Which layers may be divided: pairs that rules find, and what is against it, in words."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.seams.torch.hooks import own_hooks
from overdrive.seams.torch.tracing import compiled


def candidates(model: nn.Module, ranks: int) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Pairs of names, and of the other linear layers why they stay whole.

    The rule: two linear layers of one module, of which the second takes as many numbers as the first gives. Whether
    what lies between them keeps these numbers apart, a trial finds out.
    """
    reasons: dict[str, str] = {}
    found: list[tuple[str, str]] = []
    shared = Counter(id(each) for module in model.modules() for each in module.parameters(recurse=False))
    for parent, module in model.named_modules():
        layers = [(f"{parent}.{name}".lstrip("."), each) for name, each in module.named_children() if _linear(each)]
        for name, layer in layers:
            if type(layer) is not nn.Linear:
                reasons[name] = f"it is a {type(layer).__name__}, which may compute otherwise"
            elif any(shared[id(each)] > 1 for each in layer.parameters()):
                reasons[name] = "another module has its weights too"
            elif any(not each.requires_grad for each in layer.parameters()):
                reasons[name] = "it is not trained"
        free = [(name, layer) for name, layer in layers if name not in reasons]
        found += _chosen(free, ranks, reasons)
    return found, reasons


def _chosen(layers: Sequence[tuple[str, Any]], ranks: int, reasons: dict[str, str]) -> list[tuple[str, str]]:
    found = []
    place = 0
    while place < len(layers):
        name, first = layers[place]
        after = layers[place + 1] if place + 1 < len(layers) else None
        if after is None or after[1].in_features != first.out_features:
            reasons[name] = "no layer beside it takes what it gives"
        elif first.out_features % ranks:
            reasons[name] = f"its {first.out_features:,} outputs are not a multiple of {ranks}"
        else:
            found.append((name, after[0]))
            place += 1
        place += 1
    return found


def _linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)


def refusal(model: nn.Module, optimizers: Sequence[Any]) -> str:
    """Why nothing of this model can be divided; empty where something may."""
    if others := [name for each in optimizers if (name := looks_at_more(each))]:
        return f"{others[0]} may look at more of a parameter than one element"
    if own_hooks(model):
        return "the program has hooks on it"
    if any(compiled(each) for each in model.modules()):
        return "it is compiled"
    if any(each.grad is not None for each in model.parameters()):
        return "it has gradients before its first call"
    inside = {id(each) for each in model.modules()}
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.amp.GradScaler) and thing.is_enabled():
            return "gradients are scaled, and whether they overflowed would be each rank's own"
        if kind is type(model) and id(thing) not in inside and _shapes(thing) == _shapes(model):
            return "the program has a copy of it"
    return ""


def _shapes(model: nn.Module) -> list[Any]:
    return [each.shape for each in model.parameters()]


def trained_by(model: nn.Module, optimizers: Sequence[Any]) -> list[Any]:
    """Those of the optimizers that train parameters of this model."""
    own = {id(each) for each in model.parameters()}
    return [each for each in optimizers if any(id(parameter) in own for parameter in parameters_of(each))]
