"""What a model is given, in a few numbers that rounding hardly moves and other data does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from overdrive.worker.torch.probe import checksum

_MOST_ELEMENTS = 1 << 16  # of a tensor that its sketch is made of


def sketch(thing: Any) -> list[float]:
    """Three numbers for each tensor of fractions in a call's arguments, and a checksum of all else.

    The three are a cosine-weighted sum over the norm, the mean over the root mean square, and the logarithm of the
    latter. Rounding to bf16 changes the first by less than 0.02 and the others by less than 0.005; other samples of the
    same data change the first by about 0.7, a wrong normalisation the last two by as much as it is wrong.
    """
    if isinstance(thing, torch.Tensor) and thing.is_floating_point() and thing.numel():
        return [float(checksum(str(tuple(thing.shape)))), *_numbers(thing)]
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, (list, tuple)):
        return [number for each in thing for number in sketch(each)]
    return [float(checksum(thing))]


def _numbers(tensor: torch.Tensor) -> list[float]:
    flat = tensor.detach().reshape(-1)[:_MOST_ELEMENTS].cpu().double().nan_to_num(0.0, 0.0, 0.0)
    norm = flat.norm().clamp_min(1e-30)
    root_mean_square = norm / len(flat) ** 0.5
    return [float(flat @ _wave(len(flat)) / norm), float(flat.mean() / root_mean_square), float(root_mean_square.log())]


@lru_cache(maxsize=16)
def _wave(length: int) -> torch.Tensor:
    return torch.cos(torch.arange(length, dtype=torch.float64) * 12.9898)
