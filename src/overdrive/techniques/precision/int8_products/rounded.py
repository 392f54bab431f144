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
    """Those of a model's linear layers, as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        layers = [
            each for each in torch.nn.Module.modules(model) if isinstance(each, torch.nn.Linear) and _is_fit(each)
        ]
        # Without such arithmetic sums of pairs have 16 bits, which they would run over.
        self._seven_bits = not set(_EIGHT_BITS) & set(instructions())
        self._packed = {_key(each.weight, each.bias): _packed(each.weight, each.bias) for each in layers}
        # It keeps them alive, too: an id says nothing once its object is gone.
        self._weights = Weights(tensor for each in layers for tensor in (each.weight, each.bias) if tensor is not None)

    def changed(self) -> bool:
        return self._weights.changed()

    def product(self, input: Any, weight: Any, bias: Any = None) -> Any:
        """What `F.linear` is asked for; None where it is to be PyTorch's."""
        packed = self._packed.get(_key(weight, bias))
        if packed is None or type(input) is not torch.Tensor or input.dtype is not torch.float32:
            return None
        if input.device.type != "cpu" or input.dim() < 2 or not input.numel():
            return None
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return None
        return torch.ops.quantized.linear_dynamic(input, packed, self._seven_bits)


def all_finite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether all of these are plain tensors of numbers that are finite: NaN would be none after rounding."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
    return all(map(takes, given)) and finite([as_it_lies(each) for each in given if each.is_floating_point()])


def _is_fit(layer: torch.nn.Linear) -> bool:
    weight = layer.weight
    if type(weight) is not torch.nn.Parameter or weight.dtype is not torch.float32 or weight.device.type != "cpu":
        return False
    return weight.numel() >= _LEAST and bool(torch.isfinite(weight).all())


def _key(weight: Any, bias: Any) -> tuple[int, int]:
    return id(weight), id(bias)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such tensors are to go from PyTorch some day
        scales = (weight.abs().amax(1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        rounded = torch.quantize_per_channel(weight, scales, torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.detach())
