"""Floating-point operations and bytes of TensorFlow's operators, from the shapes of the graph they were traced in.

A multiplication and an addition are two, as in `torch.utils.flop_counter`; operators on single elements count one for
each. TensorFlow's own registry of such numbers wants shapes that are known while a graph is traced, where the size of a
batch often is not: here it is that of the batches that were seen. Bytes are those of all tensors that go in and come
out, once each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overdrive.worker.profiling.keras.tally import Count

# What oneDNN and the optimizations of a graph put before an operator's name.
_PREFIX = re.compile(r"^_?(MklNative|Mkl|ITEX|Xla)?(Fused)?")
_FORMATS = ("float32", "float64", "float16", "bfloat16")
_NO_BYTES = ("resource", "variant", "string")
_FREE = frozenset(
    """Reshape Identity IdentityN ReadVariableOp Shape ShapeN Size Rank ExpandDims Squeeze NoOp Const StopGradient
    PreventGradient""".split()  # noqa: SIM905
)
_POINTWISE = frozenset(
    """Abs Add AddN AddV2 AssignAddVariableOp AssignSubVariableOp BiasAdd Ceil DivNoNan Elu EluGrad Equal Erf Exp Expm1
    Floor Greater GreaterEqual LeakyRelu LeakyReluGrad Less LessEqual Log Log1p Maximum Minimum Mul MulNoNan Neg Pow
    RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid
    SigmoidGrad Sign Softplus SoftplusGrad Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Xdivy
    BiasAddGrad Max Mean Min Prod Sum""".split()  # noqa: SIM905
)
_PRODUCTS = re.compile(r"MatMul|Conv|Einsum|RNN|LSTM|GRU")


@dataclass(frozen=True)
class Tensor:
    """`size`: bytes of one element."""

    kind: str
    shape: tuple[int, ...]
    size: int = 4

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return 0 if self.kind in _NO_BYTES else self.count * self.size


@dataclass(frozen=True)
class Traced:
    """An operation with all sizes known. `flipped`: which factors of a product are transposed."""

    operator: str
    given: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    flipped: tuple[bool, bool] = (False, False)


def plain(operator: str) -> str:
    """The operator that a fused or a library's one stands for."""
    return _PREFIX.sub("", operator).removesuffix("WithBias")


def count(operator: str, operation: Any, batch: int) -> Count:
    """Of an operator in a recording. `operation`: as it was traced, or the last of those that it was fused of; None
    where that is not known."""
    name = plain(operator)
    traced = as_traced(name, operation, batch)
    if traced is None:
        return Count(known=not _PRODUCTS.search(name))
    return counted(traced)


def counted(traced: Traced) -> Count:
    name = traced.operator
    if name in _FREE or not traced.given:
        return Count()
    flops = _flops(traced)
    if flops is None:
        return Count(known=False)
    wide = next((each.kind for each in (*traced.given, *traced.made) if each.kind in _FORMATS), "")
    return Count(flops, sum(each.bytes for each in (*traced.given, *traced.made)), wide)


def _flops(traced: Traced) -> float | None:
    name, made = traced.operator, traced.made
    if name in _POINTWISE:
        return float(max(each.count for each in traced.given))
    shapes = [each.shape for each in traced.given]
    try:
        if name == "MatMul" or name.startswith("BatchMatMul"):
            return _product(shapes[0], shapes[1], traced.flipped)
        if "Conv" in name and "BackpropFilter" in name:
            return 2.0 * math.prod(shapes[2]) * math.prod(_window(name, made[0].shape))
        if "Conv" in name and "BackpropInput" in name:
            return 2.0 * math.prod(shapes[2]) * math.prod(_window(name, shapes[1]))
        if re.fullmatch(r"(Conv\dD|DepthwiseConv2dNative)", name):
            return 2.0 * made[0].count * math.prod(_window(name, shapes[1]))
    except (IndexError, ZeroDivisionError):
        return None
    return None if _PRODUCTS.search(name) else 0.0


def _window(name: str, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """What is summed for one number of the result: space and input channels; of a depthwise one, space alone."""
    return kernel[:-2] if name.startswith("Depthwise") else kernel[:-1]


def _product(one: tuple[int, ...], other: tuple[int, ...], flipped: tuple[bool, bool]) -> float:
    rows, inner = (one[-1], one[-2]) if flipped[0] else (one[-2], one[-1])
    columns = other[-2] if flipped[1] else other[-1]
    return 2.0 * max(math.prod(one[:-2]), math.prod(other[:-2])) * rows * inner * columns


def as_traced(name: str, operation: Any, batch: int) -> Traced | None:
    """What a fused operator was made of ends with `operation`: the one that it is named for comes before that."""
    last = operation
    while operation is not None and operation.type != name:
        operation = operation.inputs[0].op if len(operation.inputs) and operation.type in _POINTWISE else None
    if operation is None:
        return None
    given = [_tensor(each, batch) for each in operation.inputs]
    made = [_tensor(each, batch) for each in last.outputs]
    if None in given or None in made:
        return None
    flipped = tuple(_flag(operation, names) for names in (("transpose_a", "adj_x"), ("transpose_b", "adj_y")))
    return Traced(name, tuple(filter(None, given)), tuple(filter(None, made)), (flipped[0], flipped[1]))


def _flag(operation: Any, names: Sequence[str]) -> bool:
    for name in names:
        try:
            return bool(operation.get_attr(name))
        except ValueError:
            continue
    return False


def _tensor(tensor: Any, batch: int) -> Tensor | None:
    """None where more is unknown of its shape than the size of the batch."""
    if tensor.dtype.name in _NO_BYTES:
        return Tensor(tensor.dtype.name, (), 0)
    if tensor.shape.rank is None:
        return None
    sizes = [batch if size is None and place == 0 else size for place, size in enumerate(tensor.shape.as_list())]
    return None if None in sizes else Tensor(tensor.dtype.name, tuple(sizes), int(tensor.dtype.size))


def shapes(traced: Traced | None) -> str:
    """Of what goes in, as in other profiles: `64x28x28x1, 3x3x1x32`."""
    known = ["x".join(map(str, each.shape)) for each in traced.given if each.shape] if traced else []
    return ", ".join(known[:3])
