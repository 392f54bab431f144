"""Floating-point operations and bytes of what XLA runs, from the text of the compiled step. Imports no framework.

Operations as XLA's own analysis of a whole program counts them: a multiplication and an addition are two, what falls
into the padding of a convolution is none. Bytes are those of all arrays that go in and come out, once each: what
lies within a fusion is in nobody's memory.
"""

from __future__ import annotations

import math
import re

from overdrive.worker.profiling.keras.on_jax.hlo import Instruction, Module, Shape
from overdrive.worker.profiling.keras.tally import Count

_FORMATS = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"}
_POINTWISE = frozenset(
    """abs add and atan2 cbrt ceil clamp compare cosine divide erf exponential exponential-minus-one floor log
    log-plus-one logistic maximum minimum multiply negate not or power remainder round-nearest-afz round-nearest-even
    rsqrt select sign sine sqrt subtract tan tanh xor""".split()  # noqa: SIM905
)
_REDUCING = ("reduce", "reduce-window", "select-and-scatter")
_CALLS = ("fusion", "call")
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "after-all")
_PRODUCTS = re.compile(r"gemm|matmul|conv|dot|lstm|gru|rnn", re.IGNORECASE)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def count(module: Module, instruction: Instruction) -> Count:
    if instruction.opcode in _FREE:
        return Count()
    flops = _flops(module, instruction)
    given = module.given(instruction)
    moved = sum(each.bytes for each in (*given, *instruction.made))
    if flops is None:
        return Count(0.0, moved, known=False)
    wide = next((_FORMATS[each.kind] for each in (*instruction.made, *given) if each.kind in _FORMATS), "")
    return Count(flops, moved, wide)


def product(module: Module, instruction: Instruction) -> str:
    """The product of matrices that a fusion is built around; "" where it is around none."""
    inner = (instruction, *(module.inside(instruction) if instruction.opcode in _CALLS else ()))
    return next((each.opcode for each in inner if each.opcode in ("dot", "convolution")), "")


def _flops(module: Module, instruction: Instruction) -> float | None:
    """None where no formula is known."""
    opcode, made = instruction.opcode, instruction.made
    if opcode in _CALLS:
        inner = [_flops(module, each) for each in module.inside(instruction)]
        return None if None in inner else sum(each or 0.0 for each in inner)
    if opcode == "custom-call":
        target = _TARGET.search(instruction.attributes)
        return None if target is None or _PRODUCTS.search(target.group(1)) else 0.0
    if not made:
        return 0.0
    if opcode in _POINTWISE:
        return float(made[0].count)
    given = module.given(instruction)
    if opcode in _REDUCING:
        return float(given[0].count) if given else 0.0
    if opcode == "dot":
        contracted = _CONTRACTED.search(instruction.attributes)
        if contracted is None or not given:
            return None
        sizes = [given[0].sizes[int(each)] for each in contracted.group(1).split(",") if each]
        return 2.0 * made[0].count * math.prod(sizes)
    if opcode == "convolution":
        return _convolution(instruction.attributes, given, made[0])
    return 0.0


def _convolution(attributes: str, given: list[Shape], made: Shape) -> float | None:
    labels = _LABELS.search(attributes)
    if labels is None or len(given) < 2:
        return None
    into, kernel, out = labels.groups()
    window = _WINDOW.search(attributes)
    told = dict(each.split("=", 1) for each in window.group(1).split()) if window else {}
    each_result = 2.0 * given[1].sizes[kernel.index("i")]  # input channels of its group
    apart = 1.0
    for label in filter(str.isdigit, out):
        place = int(label)
        size = made.sizes[out.index(label)]
        apart *= size
        each_result *= _meeting(
            given[0].sizes[into.index(label)],
            given[1].sizes[kernel.index(label)],
            size,
            _of(told, "stride", place),
            int(told["pad"].split("x")[place].split("_")[0]) if "pad" in told else 0,
            _of(told, "lhs_dilate", place),
            _of(told, "rhs_dilate", place),
        )
    return each_result * made.count / apart if apart else 0.0


def _of(told: dict[str, str], name: str, place: int) -> int:
    return int(told[name].split("x")[place]) if name in told else 1


def _meeting(given: int, kernel: int, made: int, stride: int, before: int, spread: int, wide: int) -> int:
    """In one dimension: how often an element of the kernel meets one of what is given, and neither padding nor the
    holes between them."""
    last = (given - 1) * spread
    places = (at * stride + tap * wide - before for at in range(made) for tap in range(kernel))
    return sum(0 <= place <= last and place % spread == 0 for place in places)
