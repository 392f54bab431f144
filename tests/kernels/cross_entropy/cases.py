"""Random calls of a cross-entropy, by their number: the same in each run."""

from __future__ import annotations

import os
import random
from importlib.util import find_spec

import pytest
import torch

from overdrive.kernels.cross_entropy.operator import KINDS, Call

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
needs_interpreter = pytest.mark.skipif(
    not INTERPRETED, reason="needs Triton's interpreter, in a process that is started with it: make test-kernels"
)
if INTERPRETED:
    from tests.kernels import bf16

    bf16.mend()
# Few columns, where a program has several rows; about one block, and more; and a vocabulary.
COLUMNS = (2, 3, 7, 10, 16, 17, 33, 100, 129, 1000, 1024, 1025, 4096, 4097, 5000)
LARGE = (50257,)


def case(number: int) -> Call:
    """Types, shapes, strides, ranges, options: whatever the operator is for, and in a third of all several at once."""
    draw = random.Random(number)
    torch.manual_seed(number)
    kind = KINDS[number % len(KINDS)]
    columns = draw.choice(COLUMNS[: draw.choice((8, 8, 8, len(COLUMNS)))]) if number % 500 else draw.choice(LARGE)
    rows = draw.randint(1, 9) if columns > 200 else draw.randint(1, 90)
    logits = strided(draw, torch.randn(rows, columns) * draw.choice((0.01, 1.0, 1.0, 4.0, 30.0)), kind)
    target = torch.randint(columns, (rows,) if draw.random() < 0.8 else (rows, 2))
    target = target if target.dim() == 1 else target[:, 0]
    if draw.random() < 0.4:  # a confident model
        logits[torch.arange(rows), target] += draw.choice((5.0, 12.0, 40.0))
    if draw.random() < 0.2 and kind is not torch.float16:
        logits += draw.choice((1e4, -3e3))
    if draw.random() < 0.15:
        logits.masked_fill_(torch.rand(rows, columns) < 0.3, -torch.inf)
        logits[torch.arange(rows), target] = 0.5
    ignored = draw.choice((-100, -100, 0, 1, columns - 1))
    if draw.random() < 0.5:
        target[torch.rand(rows) < draw.choice((0.1, 0.5))] = ignored
    weight = torch.rand(columns).to(kind) + 0.25 if draw.random() < 0.3 else None
    finite = bool(logits.isfinite().all())
    smoothing = draw.choice((0.0, 0.0, 0.1, 0.5, 1.0)) if finite else 0.0
    return Call(logits, target, weight, ignored, draw.randrange(3), smoothing, False)


def strided(draw: random.Random, x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The same numbers, in some order of memory: rows with gaps, or columns that do not lie side by side."""
    rows, columns = x.shape
    order = draw.choice(("plain", "plain", "gaps", "transposed"))
    if order == "plain":
        return x.to(kind)
    room = torch.zeros(rows, columns + 5) if order == "gaps" else torch.zeros(columns, rows).t()
    room = room.to(kind)[:, :columns]
    return room.copy_(x)


def simple(
    rows: int = 5, columns: int = 10, kind: torch.dtype = torch.float32, reduction: int = 0, smoothing: float = 0.0
) -> Call:
    torch.manual_seed(rows * columns)
    target = torch.randint(columns, (rows,))
    return Call(2 * torch.randn(rows, columns).to(kind), target, None, -100, reduction, smoothing, False)
