"""How far results are from those in 64 bits: ours and torch's, over many calls.

Each error is divided by what the type can tell apart at the size of the exact number, and what 32 bits can tell apart
at the size of what it is a difference or sum of. So errors of all calls may be pooled.

    TRITON_INTERPRET=1 python -m tests.kernels.cross_entropy.errors 10000      prints them, for docs/kernels.md
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.kernels.cross_entropy.comparison import loss_size, results, slope_size, worse
from overdrive.kernels.cross_entropy.operator import Call


@dataclass
class Pool:
    numbers: int = 0
    squares: float = 0.0
    largest: float = 0.0

    def add(self, errors: torch.Tensor) -> None:
        if errors.numel():
            self.numbers += errors.numel()
            self.squares += float(errors.square().sum())
            self.largest = max(self.largest, float(errors.max()))

    @property
    def rms(self) -> float:
        return (self.squares / max(self.numbers, 1)) ** 0.5


class Errors:
    """Attributes: `pools`: by type, by what (result, gradient), of ours and torch's."""

    def __init__(self) -> None:
        self.pools: dict[tuple[str, str], tuple[Pool, Pool]] = defaultdict(lambda: (Pool(), Pool()))

    def add(self, call: Call) -> None:
        ours, torchs, exact = results(F.cross_entropy, call)
        kind = call.logits.dtype
        for what, index, size in (("result", 0, loss_size(call)), ("gradient", 1, slope_size(call))):
            truth = exact[index]
            least = torch.finfo(kind).smallest_normal * torch.finfo(kind).eps
            unit = torch.finfo(kind).eps * truth.abs() + 2.0**-23 * size + least
            known = truth.isfinite() & torchs[index].isfinite()  # torch's own sums leave the range of 16 bits
            for pool, found in zip(self.pools[str(kind), what], (ours[index], torchs[index]), strict=True):
                pool.add(((found.double() - truth).abs() / unit)[known])

    def told(self) -> dict[str, Any]:
        return {
            f"{kind.removeprefix('torch.')} {what}": {
                "numbers": ours.numbers,
                "rms": [round(ours.rms, 4), round(torchs.rms, 4)],
                "largest": [round(ours.largest, 3), round(torchs.largest, 3)],
            }
            for (kind, what), (ours, torchs) in sorted(self.pools.items())
        }


if __name__ == "__main__":
    from tests.kernels.cross_entropy.cases import case

    pooled = Errors()
    for number in range(int(sys.argv[1])):
        call = case(number)
        if wrong := worse(F.cross_entropy, call):
            print(number, wrong)
        pooled.add(call)
    print(json.dumps(pooled.told(), indent=1))
