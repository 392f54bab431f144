"""What lies in memory between two steps of a PyTorch program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overdrive.seams.parameters import parameters_of
from overdrive.worker.profiling.memory import CATEGORIES


def standing(optimizers: Sequence[Any], models: Sequence[Any]) -> tuple[dict[str, int], dict[int, str]]:
    """Bytes that are there between two steps, by category (buffers are with the parameters), and their addresses."""
    owned: dict[int, Any] = {}
    for model in models:
        owned.update((id(each), each) for each in (*model.parameters(), *model.buffers()))
    for optimizer in optimizers:
        owned.update((id(each), each) for each in parameters_of(optimizer))
    kept = [value for each in optimizers for state in each.state.values() for value in _tensors_in(state)]
    gradients = [each.grad for each in owned.values() if each.grad is not None]
    return placed({"parameters": list(owned.values()), "gradients": gradients, "optimizer state": kept})


def placed(by_category: Mapping[str, Sequence[Any]]) -> tuple[dict[str, int], dict[int, str]]:
    """Bytes by category, and addresses; a tensor counts for the first category that has it."""
    size, places = dict.fromkeys(CATEGORIES, 0), {}
    for name, tensors in by_category.items():
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in places:
                places[storage.data_ptr()] = name
                size[name] += storage.nbytes()
    return size, places


def _tensors_in(state: Any) -> list[Any]:
    """Also those that LBFGS keeps in lists."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [tensor for each in state for tensor in _tensors_in(each)]
    return [state]
