"""Floating-point operations and bytes of TensorFlow's operators, from the shapes that its recording tells.

A multiplication and an addition are two, as in `torch.utils.flop_counter`; operators on single elements count one for
each. TensorFlow's own registry of such numbers wants shapes that are known while a graph is traced, where the size of a
batch is not. Bytes are those of all tensors that go in and come out, once each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")
# What oneDNN and the optimizations of a graph put before an operator's name.
_PREFIX = re.compile(r"^_?(MklNative|Mkl|ITEX|Xla)?(Fused)?")
_SIZES = {"double": 8, "int64": 8, "uint64": 8, "half": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
_SIZES |= dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1)
_FORMATS = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"}
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
    kind: str  # as TensorFlow writes it: "float"
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return 0 if self.kind in ("resource", "variant", "string") else self.count * _SIZES.get(self.kind, 4)


@dataclass(frozen=True)
class Count:
    """`known`: False for a product of matrices that no formula was found for."""

    flops: float = 0.0
    bytes: float = 0.0
    format: str = ""
    known: bool = True


def tensors(text: str) -> list[Tensor]:
    """Of `(float[64,28,28,1];float[3,3,1,32])`."""
    return [
        Tensor(kind, tuple(int(size) for size in sizes.split(",") if size)) for kind, sizes in _TENSOR.findall(text)
    ]


def plain(operator: str) -> str:
    """The operator that a fused or a library's one stands for."""
    return _PREFIX.sub("", operator)


def count(operator: str, given: Sequence[Tensor], operation: Any) -> Count:
    """`operation`: as it was traced, if that is known: its attributes, and the shapes that it gives."""
    name = plain(operator)
    if name in _FREE or not given:
        return Count()
    made = _made(given, operation)
    flops = _flops(name, given, made, operation)
    wide = next((each for each in (*given, *made) if each.kind in _FORMATS), None)
    if flops is None:
        return Count(0.0, 0.0, "", not _PRODUCTS.search(name))
    if not made and name in _POINTWISE:
        made = [max(given, key=lambda each: each.count)]
    moved = sum(each.bytes for each in (*given, *made)) if made else 0
    return Count(flops, moved, _FORMATS[wide.kind] if wide else "")


def _flops(name: str, given: Sequence[Tensor], made: Sequence[Tensor], operation: Any) -> float | None:
    if name in _POINTWISE:
        return float(max(each.count for each in given))
    shapes = [each.shape for each in given]
    try:
        if name.endswith("MatMul") or name.startswith("BatchMatMul"):
            return _product(shapes[0], shapes[1], operation)
        if "Conv" in name and name.endswith(("BackpropFilter", "BackpropFilterV2")):
            window = next(each for each in made).shape
            return 2.0 * math.prod(shapes[2]) * math.prod(_window(name, window))
        if "Conv" in name and name.endswith(("BackpropInput", "BackpropInputV2")):
            return 2.0 * math.prod(shapes[2]) * math.prod(_window(name, shapes[1]))
        if re.fullmatch(r"(Conv\dD|DepthwiseConv2dNative)", name):
            return 2.0 * made[0].count * math.prod(_window(name, shapes[1]))
    except (IndexError, StopIteration, ValueError, ZeroDivisionError):
        return None
    return None if _PRODUCTS.search(name) else 0.0


def _window(name: str, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """What is summed for one number of the result: space and input channels; of a depthwise one, space alone."""
    return kernel[:-2] if name.startswith("Depthwise") else kernel[:-1]


def _product(one: tuple[int, ...], other: tuple[int, ...], operation: Any) -> float:
    flipped = [_flag(operation, names) for names in (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))]
    inner = one[-2] if flipped[0] else one[-1]
    if inner != (other[-1] if flipped[1] else other[-2]):  # it is not the one that was traced
        inner = next(size for size in (one[-1], one[-2]) if size in other[-2:])
    rows, columns = one[-2] * one[-1] / inner, other[-2] * other[-1] / inner
    return 2.0 * max(math.prod(one[:-2]), math.prod(other[:-2])) * rows * inner * columns


def _flag(operation: Any, names: Sequence[str]) -> bool:
    for name in names:
        try:
            return bool(operation.get_attr(name))
        except (AttributeError, ValueError):
            continue
    return False


def _made(given: Sequence[Tensor], operation: Any) -> list[Tensor]:
    """What comes out, from what was known while it was traced; the size of a batch is that of what went in."""
    batch = next((each.shape[0] for each in given if each.shape and each.bytes), None)
    found = []
    for each in operation.outputs if operation is not None else ():
        if each.shape.rank is None:
            return []
        sizes = [batch if size is None and place == 0 else size for place, size in enumerate(each.shape.as_list())]
        if None in sizes:
            return []
        name = each.dtype.name
        kind = {"float32": "float", "float64": "double", "float16": "half"}.get(name, name)
        found.append(Tensor(kind, tuple(sizes)))
    return found
