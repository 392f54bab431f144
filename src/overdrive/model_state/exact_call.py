"""A model's call in fp64, made in two ways, and whether both gave the same: results, and all gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_CLOSE = 1e-9  # of fp64, where sums are taken in another order
_SMALL = 0.1  # weights in the place of zeros
_NOISE = 1e-13  # of the largest gradient: what others are that would be zero, as of a bias that a norm takes away


def exact(leaf: Any) -> Any:
    """A tensor of floats, in fp64; all else as it is."""
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point else leaf


def without_zeros(model: torch.nn.Module) -> None:
    """Give weights that are all zero other ones, for good: behind a head or a branch that is zero at first, as many
    initialise them, one could compute anything, and no comparison of results would see it."""
    generator = torch.Generator().manual_seed(0)
    for each in model.parameters():
        if each.device.type == "cpu" and each.is_floating_point() and not is_lazy(each) and not each.detach().any():
            drawn = torch.randn(each.shape, generator=generator, dtype=torch.float64)
            each.data.copy_(drawn * _SMALL)


class Exact(TorchFunctionMode):
    """What a model asks for in fp32 (some norms do) it has in fp64: else another order of sums would look like more."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args, kwargs = pytree.tree_map_only(torch.dtype, _wider, (args, kwargs or {}))
        return function(*args, **kwargs)


def weighted_sums(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """A loss of each output that has a gradient, in which each element counts otherwise."""
    return [
        (each * torch.linspace(0.5, 1.5, each.numel(), dtype=each.dtype).view(each.shape)).sum()
        for each in outputs
        if each.requires_grad
    ]


def noise_of(gradients: Sequence[Any]) -> float:
    """How far from zero a gradient may be that would be zero."""
    return _NOISE * max((float(each.abs().max()) for each in gradients if each is not None and each.numel()), default=0)


def equal_in_fp64(one: Any, other: Any, noise: float = 0.0) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.dtype.is_floating_point:
        return torch.equal(one, other)
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_CLOSE, atol=max(_CLOSE * scale, noise, 1e-300), equal_nan=True)


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype
