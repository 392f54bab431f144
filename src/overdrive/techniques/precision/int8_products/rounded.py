"""A model's weights in eight bits, and products with them."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from overdrive.engines.ranges import finite
from overdrive.engines.signature import takes
from overdrive.engines.weights import Weights
from overdrive.machine.cpu import instructions
from overdrive.seams.torch.layouts import as_it_lies

_LEAST = 1 << 16  # weights: a smaller layer waits for the rounding of its inputs longer than for them
_LARGEST = 127
_EIGHT_BITS = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")  # arithmetic that sums up in 32 bits


class RoundedWeights:
    """Those that its products ask for, as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        parameters = [each for each in torch.nn.Module.parameters(model) if _is_plain(each)]
        weights = [each for each in parameters if each.dim() == 2 and each.numel() >= _LEAST]
        biases = [each for each in parameters if each.dim() == 1]
        # It keeps them alive, too: an id says nothing once its object is gone.
        self._weights = Weights([*weights, *biases])
        self._matrices, self._biases = {*map(id, weights)}, {*map(id, biases), id(None)}
        self._packed: dict[tuple[int, int, bool], Any] = {}
        # Without such arithmetic sums of pairs have 16 bits, which they would run over.
        self._seven_bits = not set(_EIGHT_BITS) & set(instructions())

    def changed(self) -> bool:
        return self._weights.changed()

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:
        """What `F.linear` is asked for; None where it is to be PyTorch's."""
        return self._product(input, weight, bias, False)

    def addmm(self, input: Any, mat1: Any, mat2: Any, **others: Any) -> Any:
        """Likewise of `torch.addmm`, as a layer asks it: its bias, and its weights as (inputs, outputs)."""
        return None if others else self._product(mat1, mat2, input, True)

    def _product(self, given: Any, weight: Any, bias: Any, transposed: bool) -> Any:
        if id(weight) not in self._matrices or id(bias) not in self._biases:
            return None
        if bias is not None and bias.numel() != weight.size(1 if transposed else 0):  # one for all, say
            return None
        if type(given) is not torch.Tensor or given.dtype is not torch.float32 or given.device.type != "cpu":
            return None
        if given.dim() < 2 or not given.numel():
            return None
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return None
        key = id(weight), id(bias), transposed
        if key not in self._packed:
            self._packed[key] = _packed(weight.detach().t() if transposed else weight.detach(), bias)
        packed = self._packed[key]
        return None if packed is None else torch.ops.quantized.linear_dynamic(given, packed, self._seven_bits)


def all_finite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all of these are plain tensors of numbers that are finite: NaN would be none after rounding."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    return all(map(takes, given)) and finite([as_it_lies(each) for each in given if each.is_floating_point()])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a parameter of 32 bits in the memory of the host."""
    return type(tensor) is torch.nn.Parameter and tensor.dtype is torch.float32 and tensor.device.type == "cpu"


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """These as (outputs, inputs) in eight bits; None where one is not finite."""
    if not torch.isfinite(weight).all():
        return None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such tensors are to go from PyTorch some day
        scales = (weight.abs().amax(1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())
