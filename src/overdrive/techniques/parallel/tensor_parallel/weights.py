"""Which weights may be divided, and what is against dividing anything of a model, in words."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.seams.torch.hooks import accumulation_hooks, gradient_hooks, own_hooks
from overdrive.seams.torch.modules import parameters_in
from overdrive.seams.torch.tracing import compiled


def candidates(model: nn.Module) -> tuple[list[str], dict[str, str]]:
    """Names of weights that may be divided, and of the others why they stay whole.

    These are the matrices and larger tensors that are trained, and the biases beside them. What they are used for, and
    by that whether and how they can be divided, a trial finds out.
    """
    names = {id(each): name for name, each in model.named_parameters()}
    found: dict[str, None] = {}
    reasons: dict[str, str] = {}
    for module in model.modules():
        own = [each for each in parameters_in(module).values() if each is not None]
        if not any(each.dim() > 1 for each in own):
            continue
        for each in own:
            name = names[id(each)]
            if each.requires_grad:
                found[name] = None
            elif each.dim() > 1:
                reasons[name] = "it is not trained"
    return list(found), reasons


def refusal(model: nn.Module, optimizers: Sequence[Any]) -> str:
    """Why nothing of this model can be divided; empty where something may."""
    if others := [name for each in optimizers if (name := looks_at_more(each))]:
        return f"{others[0]} may look at more of a parameter than one element"
    if own_hooks(model):
        return "the program has hooks on it"
    for name, each in model.named_parameters():
        if gradient_hooks(each) or accumulation_hooks(each):  # they would be called with parts
            return f"the program has hooks on the gradient of {name}"
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
