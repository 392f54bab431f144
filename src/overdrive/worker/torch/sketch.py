"""What a model is given, in a few numbers that rounding hardly moves and other data does."""

from __future__ import annotations

from typing import Any

import torch

from overdrive.worker import digests
from overdrive.worker.torch.probe import checksum


def sketch(thing: Any) -> list[float]:
    """`worker.digests.sketch` of each tensor of fractions in a call's arguments, and a checksum of all else."""
    if isinstance(thing, torch.Tensor) and thing.is_floating_point() and thing.numel():
        flat = thing.detach().reshape(-1)[:: digests.spacing(thing.numel())].to("cpu", torch.float64).numpy()
        return [float(checksum(str(tuple(thing.shape)))), *digests.sketch(flat)]
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        return [number for each in thing for number in sketch(each)]
    return [float(checksum(thing))]
