"""What a model is given, in a few numbers that rounding hardly moves and other data does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from overdrive.seams.batches import leaves
from overdrive.seams.torch.layouts import is_plain, strided_parts
from overdrive.worker import digests
from overdrive.worker.torch.checksums import checksum


def sketch(thing: Any) -> list[float]:
    """`worker.digests.sketch` of each tensor of fractions in a call's arguments, and a checksum of all else."""
    return [number for leaf in leaves(thing) for number in _sketch(leaf)]


def _sketch(leaf: Any) -> list[float]:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
        return [float(checksum(leaf))]
    if is_plain(leaf):
        return [float(checksum(str(tuple(leaf.shape)))), *digests.sketch(_some(leaf))]
    parts = strided_parts(leaf)  # where the values of a sparse matrix lie is data, and no rounding moves it
    values = [each for each in parts if each.is_floating_point()]
    form = [str(tuple(each.shape)) if each.is_floating_point() else each for each in parts]
    return [float(checksum(form)), *digests.sketch(np.concatenate([_some(each) for each in values]))]


def _some(tensor: torch.Tensor) -> Any:
    """Elements from all over it, flat."""
    flat = tensor.detach().reshape(-1)[:: digests.spacing(tensor.numel())]
    return flat.to("cpu", torch.float64).numpy()
