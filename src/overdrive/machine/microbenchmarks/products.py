"""Matrix products by number format: the peak arithmetic that a library really reaches here.

As MAMF-finder does (https://github.com/stas00/ml-engineering, compute/accelerator): the best over several sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from overdrive.machine.microbenchmarks.best import Measurements, NotMeasured, best_seconds

_FORMATS: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
_SIDES = {"cpu": (512, 1024, 1536), "cuda": (2048, 4096, 8192)}
# A processor that multiplies 16 or 8 bits slower than this share of its fp32 does so by emulation (2 % was seen
# of bf16 and fp16 without their instructions): nobody computes so, and the large sizes would take minutes.
_EMULATED = 0.1
_TRIED_FIRST = 256


def measure_products(
    answer: Measurements, device: str, prefix: str, formats: tuple[str, ...] = tuple(_FORMATS)
) -> None:
    """Puts `PREFIXmatmul.FORMAT`, in FLOP/s (a product and a sum are two), int8 in OP/s."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    floor = 0.0
    for name in sorted(formats, key=lambda each: each != "fp32"):  # the others are judged by it
        full = f"{prefix}matmul.{name}"
        answer.attempt(full, partial(_measure, answer, device, name, full, floor, wait))
        if device == "cpu" and name == "fp32" and full in answer.measures:
            floor = _EMULATED * answer.measures[full]["value"]


def _measure(answer: Measurements, device: str, name: str, full: str, floor: float, wait: Callable[[], None]) -> None:
    if name == "tf32" and device != "cuda":
        raise NotMeasured("a processor has no tf32")
    if name == "tf32" and torch.cuda.get_device_capability()[0] < 8:
        raise NotMeasured("this GPU has no tf32: it came with compute capability 8.0")
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32" if name == "tf32" else "ieee"
    try:
        if name not in ("fp64", "fp32") and floor:
            rate = 2 * _TRIED_FIRST**3 / best_seconds(_product(device, name, _TRIED_FIRST), answer.share / 2, wait)
            if rate < floor:
                raise NotMeasured(f"emulated here: {rate / 1e9:.2g} GFLOP/s at side {_TRIED_FIRST}")
        best, at = 0.0, 0
        sides = _SIDES[device][: 2 if answer.quick else None]
        for side in sides:
            seconds = best_seconds(_product(device, name, side), answer.share, wait)
            if 2 * side**3 / seconds > best:
                best, at = 2 * side**3 / seconds, side
            if seconds > answer.share:
                break
    finally:
        matmul.fp32_precision = before
    answer.put(
        full,
        best,
        "OP/s" if name == "int8" else "FLOP/s",
        f"square matrices, best of sides {', '.join(map(str, sides))}: {at}"
        + ("" if device == "cuda" else f"; {_threads()}"),
    )


def _product(device: str, name: str, side: int) -> Callable[[], Any]:
    dtype = _FORMATS[name]
    if name == "int8":
        one, other = (torch.randint(-127, 127, (side, side), dtype=dtype, device=device) for _ in range(2))
        # By columns: of other layouts cuBLAS has no kernel for the tensor cores (by rows 124 TOP/s on an H100,
        # a tenth of its fp8; by columns not measured yet).
        return lambda: torch._int_mm(one, other.t())
    if name == "fp8":
        if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
            raise NotMeasured("this GPU has no fp8: it came with compute capability 8.9")
        one, other = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        scale = torch.ones((), device=device)
        return lambda: torch._scaled_mm(one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    into = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=into)


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count > 1 else ''}"
