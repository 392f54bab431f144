"""The models and parameters that live there: moved in place, so that every reference to them stays valid."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.modules import change_tensors, first_parameter
from overdrive.techniques.device.device.place import Place

Move = Callable[[torch.Tensor], torch.Tensor]


class Residents:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def optimizer(self, optimizer: Any, models: list[Any]) -> None:
        """Take in an optimizer that was just made, its models, and parameters that belong to none."""
        for model in models:
            self.module(model)
        self._optimizers.add(optimizer)
        for parameter in parameters_of(optimizer):
            _move_parameter(parameter, self._send)

    def module(self, module: torch.nn.Module) -> bool:
        """Whether it lives there now: a module without a tensor of its own lives nowhere."""
        first: torch.Tensor | None = first_parameter(module)
        first = next(module.buffers(), None) if first is None else first
        if first is None:
            return False
        if module not in self._modules or not self._place.has(first):
            change_tensors(module, self._send)
            self._modules.add(module)
        return True

    def leave(self) -> None:
        """Bring everything back."""
        for module in list(self._modules):
            change_tensors(module, self._bring)
        for optimizer in list(self._optimizers):
            for parameter in parameters_of(optimizer):
                _move_parameter(parameter, self._bring)
            for state in optimizer.state.values():
                if isinstance(state, dict):
                    state.update({key: self._brought(value) for key, value in state.items()})
        self._modules.clear()
        self._optimizers.clear()

    def _brought(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._bring(value)
        if type(value) in (list, tuple):  # the history of LBFGS
            return type(value)(self._brought(each) for each in value)
        return value

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._place.has(tensor) or tensor.device.type != "cpu" else self._place.send(tensor)

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._place.bring(tensor) if self._place.has(tensor) else tensor


def _move_parameter(parameter: torch.Tensor, move: Move) -> None:
    if not parameter.is_leaf:
        return
    gradient = parameter.grad
    moved = move(parameter.data)
    if moved.data_ptr() == parameter.data_ptr():
        return
    parameter.grad = None
    parameter.data = moved
    if gradient is not None:
        parameter.grad = move(gradient.detach())
