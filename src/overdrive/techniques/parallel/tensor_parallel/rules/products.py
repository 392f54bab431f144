"""Products: linear layers, convolutions, matrices. Each dimension of an operand has a label, and one label is cut.

Where the results have that label, each rank has a part of them. Where it is summed over, the ranks' results are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.parts import (
    CannotKeep,
    Part,
    deciding,
    makers_of,
    part_from,
    rule,
    whole_of,
)
from overdrive.techniques.parallel.tensor_parallel.shards import Summed, entered, shards

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@dataclass(frozen=True)
class Operand:
    """A tensor, and a label for each of its dimensions."""

    tensor: torch.Tensor
    labels: Sequence[Any]

    def cut_at(self) -> Any:
        """The label of the dimension that is divided; None where none is."""
        given = self.tensor
        return self.labels[given.cut.dim] if isinstance(given, Part) and given.cut is not None else None

    def open(self) -> bool:
        """Whether it is a weight about which nothing is decided."""
        return isinstance(self.tensor, Part) and self.tensor.cut is None


def product(
    function: Callable[..., torch.Tensor], operands: Sequence[Operand], out: Sequence[Any], columns: Any
) -> Any:
    """What `function` makes of these.

    Args:
        out: the labels of the result.
        columns: the label of a layer's outputs, by which its weight is divided where nothing else is.
    """
    label, segments = _divided_at(operands, out, columns)
    if label is None:
        return function(*(whole_of(each.tensor) for each in operands))
    own = [_own(each, label, segments) for each in operands]
    made = function(*own)
    if label not in out:
        return Summed.apply(made)  # type: ignore[no-untyped-call]
    makers = makers_of(*(each.tensor for each in operands))
    makers |= {name for each in operands[1:2] if each.open() for name in each.tensor.makers}  # type: ignore[attr-defined]
    return part_from(made, Cut(list(out).index(label), segments), makers)


def _divided_at(operands: Sequence[Operand], out: Sequence[Any], columns: Any) -> tuple[Any, tuple[int, ...]]:
    """The label that is cut, and its segments. A whole weight is not cut for the sake of what it is given."""
    cuts = {(each.cut_at(), each.tensor.cut.segments) for each in operands if each.cut_at() is not None}  # type: ignore[attr-defined]
    if len(cuts) > 1:
        raise CannotKeep("it meets what is divided otherwise")
    for label, segments in cuts:
        if label not in out and not Cut(0, segments).even(shards().size):
            raise CannotKeep(f"its {sum(segments):,} outputs are not a multiple of {shards().size}")
        makers = makers_of(*(each.tensor for each in operands))
        for each in operands:
            if type(each.tensor) is nn.Parameter and label in each.labels and label != columns:
                raise CannotKeep("the layer that takes it is whole")
            if each.open() and label in each.labels and not _opened(each, label, segments, makers):
                raise CannotKeep("the layer that takes it is whole")
        return label, segments
    for each in operands:
        if each.open() and columns in each.labels and each.tensor.dim() > 1:
            place = list(each.labels).index(columns)
            cut = _opened(each, columns, (each.tensor.shape[place],), ())
            return (None, ()) if cut is None else (columns, cut.segments)
    return None, ()


def _opened(operand: Operand, label: Any, segments: tuple[int, ...], makers: Collection[str]) -> Cut | None:
    (name,) = operand.tensor.makers  # type: ignore[attr-defined]
    return shards().open_cut(name, Cut(list(operand.labels).index(label), segments), makers)


def _own(operand: Operand, label: Any, segments: tuple[int, ...]) -> torch.Tensor:
    tensor, them = operand.tensor, shards()
    if operand.cut_at() is not None:
        return tensor.held  # type: ignore[attr-defined,no-any-return]
    if operand.open() and label in operand.labels:
        cut = _opened(operand, label, segments, ())
        if cut is not None:
            return them.weight(tensor.held, cut)  # type: ignore[attr-defined]
    whole = whole_of(tensor)
    if label not in operand.labels:
        return entered(whole)
    place = list(operand.labels).index(label)
    if whole.shape[place] == 1:  # it is the same for all of them
        return entered(whole)
    return Cut(place, segments).part(entered(whole), them.rank, them.size)


@deciding("linear")
def linear(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, weight, bias = _named(("input", "weight", "bias"), args, kwargs)
    rest = [f"x{dim}" for dim in range(x.dim() - 1)]
    return _layer(function, Operand(x, [*rest, "in"]), Operand(weight, ["out", "in"]), bias, [*rest, "out"])


@deciding("addmm")
def addmm(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear layer with its weight the other way round."""
    bias, x, weight = args[:3]
    if kwargs or len(args) > 3 or bias.dim() != 1:
        raise CannotKeep("`addmm` needs all that it gives")

    def made(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x @ weight if bias is None else torch.addmm(bias, x, weight)

    return _layer(made, Operand(x, ["x0", "in"]), Operand(weight, ["in", "out"]), bias, ["x0", "out"])


@deciding(*CONVOLUTIONS, *TRANSPOSED)
def convolution(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if name in TRANSPOSED else ["dilation", "groups"]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
    alone = given.get("groups", 1) == x.shape[1] == weight.shape[0] and name in CONVOLUTIONS  # each channel by itself
    if given.get("groups", 1) != 1 and not alone:
        raise CannotKeep("it is convolved in groups of channels")
    if x.dim() != weight.dim():
        raise CannotKeep("it is convolved without a batch")
    places = [f"s{dim}" for dim in range(x.dim() - 2)]
    kernel = [f"k{dim}" for dim in range(x.dim() - 2)]
    channels = ["in", "out"] if name in TRANSPOSED else ["out", "in"]

    def made(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return function(x, weight, bias, **given, **({"groups": x.shape[1]} if alone else {}))  # type: ignore[no-any-return]

    out = ["x0", "out", *places]
    if alone:
        del given["groups"]
        return _layer(made, Operand(x, out), Operand(weight, ["out", "one", *kernel]), bias, out)
    return _layer(made, Operand(x, ["x0", "in", *places]), Operand(weight, [*channels, *kernel]), bias, out)


def _layer(made: Callable[..., Any], x: Operand, weight: Operand, bias: Any, out: Sequence[Any]) -> Any:
    """A bias is added by who has the outputs; where these are summed, once, and after that."""
    summed = x.cut_at() == "in" or weight.cut_at() == "in"
    if bias is None or not summed:
        return product(made, [x, weight, *([Operand(bias, ["out"])] if bias is not None else [])], out, "out")
    place = list(out).index("out")
    return product(made, [x, weight], out, "out") + whole_of(bias).view(-1, *[1] * (len(out) - 1 - place))


@rule("matmul", "__matmul__", "__rmatmul__", "bmm", "mm")
def matmul(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    one, other = args if name != "__rmatmul__" else args[::-1]
    if kwargs or one.dim() < 2 or other.dim() < 2:
        raise CannotKeep("`matmul` needs all that it gives")
    batch = list(range(-max(one.dim(), other.dim()), -2))  # counted from the back
    first = Operand(one, [*batch[len(batch) + 2 - one.dim() :], "m", "k"])
    second = Operand(other, [*batch[len(batch) + 2 - other.dim() :], "k", "n"])
    return product(torch.matmul, [first, second], [*batch, "m", "n"], None)


@rule("baddbmm")
def baddbmm(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Scores of attention, and a mask."""
    if kwargs or len(args) > 3:
        raise CannotKeep("`baddbmm` needs all that it gives")
    mask, one, other = args
    operands = [
        Operand(one, ["b", "m", "k"]),
        Operand(other, ["b", "k", "n"]),
        Operand(mask, ["b", "m", "n"][-mask.dim() :]),
    ]
    if any(each.cut_at() == "k" for each in operands):
        raise CannotKeep("`baddbmm` would add its mask on each rank")
    return product(lambda one, other, mask: torch.baddbmm(mask, one, other), operands, ["b", "m", "n"], None)


@rule("einsum")
def einsum(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    equation = args[0].replace(" ", "") if isinstance(args[0], str) else ""
    if "->" not in equation or "." in equation:
        raise CannotKeep("`einsum` is given in a way that has no rule")
    given, out = equation.split("->")
    tensors = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    operands = [Operand(each, list(labels)) for each, labels in zip(tensors, given.split(","), strict=True)]
    return product(lambda *own: torch.einsum(equation, *own), operands, list(out), None)


def _named(names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return [given.get(name) for name in names]
