"""Losses of what is made of zeros while the run is made again: computed once for each form of their arguments.

A loss between images takes as long as many layers (of the public VAE half of a skipped step), and no number of it
counts. What it is besides (shape, type, whether it has a graph) hangs on the form of its arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.survive import structure

_SMALL = 4096  # elements in all: computed in less time than it takes to look
_MOST = 1000  # forms: a number that is given may be another one in each step
_PLAIN = (bool, int, float, str, type(None))


class Losses:
    def __init__(self, passed_through: Callable[[], None]) -> None:
        self._passed_through = passed_through
        self._told: dict[Any, Any] = {}  # by the form of the arguments; None where it is computed each time

    def loss(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """None where it is to be computed."""
        values = (*args, *kwargs.values())
        tensors = [each for each in values if isinstance(each, torch.Tensor)]
        if sum(each.numel() for each in tensors) < _SMALL:
            return None
        parts = [_form(each) for each in values]
        if None in parts:
            return None
        form = (name, len(args), tuple(kwargs), *parts, torch.is_grad_enabled(), _narrowed(tensors[0].device.type))
        if form not in self._told:
            if len(self._told) >= _MOST:
                return None
            result = call(*args, **kwargs)
            self._told[form] = _alone(result, tensors)
            return result
        told = self._told[form]
        return None if told is None else structure.made(told, tensors, self._passed_through)


def _form(value: Any) -> Any:
    """Of one argument; None of what is no tensor, number or text."""
    if type(value) in _PLAIN:
        return type(value), value
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return None


def _narrowed(device: str) -> Any:
    """The type to which `autocast` has functions compute there."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _alone(result: Any, tensors: list[torch.Tensor]) -> Any:
    """How it is told; None where it is no tensor of its own."""
    try:
        told = structure.told(result, tensors)
    except structure.CannotTell:
        return None
    return told if told[0] == "tensor" else None
