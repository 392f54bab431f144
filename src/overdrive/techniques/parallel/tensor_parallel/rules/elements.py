"""Functions of one element after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import (
    CannotKeep,
    decided,
    makers_of,
    part_from,
    parts_in,
    rule,
    whole_of,
)
from overdrive.techniques.parallel.tensor_parallel.shards import entered, shards

_ARITHMETIC = (
    *("add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "fmod"),
    *(
        "remainder",
        "neg",
        "abs",
        "exp",
        "expm1",
        "log",
        "log1p",
        "log2",
        "sqrt",
        "rsqrt",
        "square",
        "pow",
        "sin",
        "cos",
    ),
    *("tan", "reciprocal", "sigmoid", "tanh", "erf", "erfc", "sign", "floor", "ceil", "round", "clamp", "clamp_min"),
    *(
        "clamp_max",
        "clip",
        "maximum",
        "minimum",
        "where",
        "masked_fill",
        "lerp",
        "addcmul",
        "addcdiv",
        "eq",
        "ne",
        "lt",
    ),
    *("le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite", "nan_to_num"),
)
_ACTIVATIONS = (
    *("relu", "relu6", "gelu", "silu", "elu", "selu", "celu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"),
    *("mish", "softplus", "softsign", "logsigmoid", "hardshrink", "softshrink", "tanhshrink", "threshold"),
)
_KINDS = ("to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone", "detach", "data")
_LIKE = ("zeros_like", "ones_like", "full_like")
_WRITES = ("copy_", "zero_", "fill_")
_OPERATORS = ("add", "sub", "mul", "truediv", "pow", "radd", "rsub", "rmul", "rtruediv", "rpow", "iadd", "isub", "imul")
_NAMES = (
    *(*_ARITHMETIC, *_ACTIVATIONS, *_KINDS, *_LIKE, *_WRITES),
    *(f"{name}_" for name in (*_ARITHMETIC, *_ACTIVATIONS)),
    *(f"__{name}__" for name in (*_OPERATORS, "itruediv", "rdiv", "and", "or", "invert")),
)


@rule(*_NAMES)
def elementwise(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of parts that are cut alike, counted from the back; wholes beside them are cut likewise."""
    parts = [each for each in parts_in(args, kwargs) if each.cut is not None]
    back, cut = common(parts)
    if _writes(name) and not decided(args[0]):
        raise CannotKeep(f"`{name}` writes it into what is whole")

    def own(each: Any) -> Any:
        return aligned(each, back, cut) if isinstance(each, torch.Tensor) else each

    made = function(*map(own, args), **{key: own(each) for key, each in kwargs.items()})
    same = [each for each in parts if each.held is made]
    return same[0] if same else part_from(made, cut.at(made.dim() + back), makers_of(*parts))


def common(parts: list[Any]) -> tuple[int, Cut]:
    """Where all of these are cut, counted from the back, and how."""
    found = {(each.cut.dim - each.dim(), each.cut.segments) for each in parts}
    if len(found) > 1:
        raise CannotKeep("it meets what is divided otherwise")
    return next(iter(found))[0], parts[0].cut


def aligned(tensor: torch.Tensor, back: int, cut: Cut) -> torch.Tensor:
    """What this rank needs of an operand: its part, where the dimension is there; a whole is cut likewise."""
    if decided(tensor):
        return tensor.held  # type: ignore[attr-defined,no-any-return]
    tensor = whole_of(tensor, "it is no layer's weight there")
    if tensor.dim() < -back or tensor.shape[back] != cut.size:
        return entered(tensor)
    them = shards()
    return cut.at(tensor.dim() + back).part(entered(tensor), them.rank, them.size)


def _writes(name: str) -> bool:
    return (name.startswith("__i") and name != "__invert__") or (name.endswith("_") and not name.endswith("__"))


@rule("dropout", "dropout1d", "dropout2d", "dropout3d")
def dropout(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Masks are drawn for the whole, as in one process, so that the generator ends as there."""
    x = args[0] if args else kwargs["input"]
    p = args[1] if len(args) > 1 else kwargs.get("p", kwargs.get("dropout_p", 0.5))
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    if not training or p == 0:
        return x
    by_channel = name != "dropout"
    shape = [1 if by_channel and dim > 1 else size for dim, size in enumerate(x.shape)]
    mask = kept(x.held.new_ones(shape), p, by_channel)
    return part_from(x.held * aligned(mask, x.cut.dim - x.dim(), x.cut), x.cut, x.makers)


def kept(ones: torch.Tensor, p: float, by_channel: bool = False) -> torch.Tensor:
    """A mask of dropout, with what is kept scaled, as PyTorch draws it for this shape."""
    return (torch.feature_dropout if by_channel else torch.dropout)(ones, p, True)
