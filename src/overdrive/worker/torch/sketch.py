"""What a model is given, in a few numbers that rounding hardly moves and other data does."""

from __future__ import annotations

from typing import Any

import torch

from overdrive.seams.batches import leaves
from overdrive.worker import digests
from overdrive.worker.torch.checksums import checksum


def sketch(thing: Any) -> list[float]:
    """`worker.digests.sketch` of each tensor of fractions in a call's arguments, and a checksum of all else."""
    return [number for leaf in leaves(thing) for number in _sketch(leaf)]


def _sketch(leaf: Any) -> list[float]:
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel():
        flat = leaf.detach().reshape(-1)[:: digests.spacing(leaf.numel())].to("cpu", torch.float64).numpy()
        return [float(checksum(str(tuple(leaf.shape)))), *digests.sketch(flat)]
    return [float(checksum(leaf))]
