"""How far results are from those in 64 bits: ours and torch's, over many calls.

Each error is divided by what the type can tell apart at the size of the exact number, and what 32 bits can tell apart
at the size of what it is a difference or sum of. So errors of all calls may be pooled.

    TRITON_INTERPRET=1 PYTHONPATH=.venv/triton python -m tests.kernels.cross_entropy.errors

writes those of 10,000 calls to benchmarks/results/triton_errors.json, in a quarter of an hour.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from overdrive.kernels.cross_entropy import operator
from overdrive.kernels.cross_entropy.comparison import loss_size, results, slope_size, worse
from overdrive.kernels.cross_entropy.operator import Call
from tests.conftest import ROOT

TARGET = ROOT / "benchmarks" / "results" / "triton_errors.json"
CALLS = 10_000


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


def table(found: dict[str, Any]) -> str:
    """For docs/kernels.md."""
    lines = ["| type, what | numbers | mean square: ours, PyTorch's | largest: ours, PyTorch's |", "|---|---|---|---|"]
    for name, each in found["errors"].items():
        numbers, rms, largest = each["numbers"], each["rms"], each["largest"]
        lines.append(f"| {name} | {numbers:,} | {rms[0]:.2f}, {rms[1]:.2f} | {largest[0]:.1f}, {largest[1]:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    from tests.kernels.cross_entropy.cases import case

    pooled, wrong = Errors(), {}
    for number in range(CALLS):
        call = case(number)
        if why := worse(F.cross_entropy, call):
            wrong[number] = why
        pooled.add(call)
    source = hashlib.sha256(Path(operator.__file__).with_name("kernel.py").read_bytes()).hexdigest()
    found = {"source": source, "calls": CALLS, "worse": wrong, "errors": pooled.told()}
    TARGET.write_text(json.dumps(found, indent=1) + "\n")
