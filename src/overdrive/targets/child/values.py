"""Which values of its inputs an artefact is proved for: the runner refuses others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overdrive.engines.bounds import bounds_of
from overdrive.engines.ranges import Ranges
from overdrive.targets.order import TRITON

_LOSING_NAN = ("onnx", TRITON, "openvino")  # see `engines.ranges`; AOTInductor's code is PyTorch's own


def proved(
    target: str, graph: Any, names: Sequence[str], recorded: Sequence[Sequence[torch.Tensor]]
) -> dict[str, Mapping[str, Any]]:
    """By input: `finite`, where NaN and infinity are not; `min` and `max` of whole numbers that may be places.

    Those places are in it that the graph says are there, and what the program gave.
    """
    kinds = [each.numpy().dtype.kind for each in recorded[0]]
    bounds = {number: ends for number, ends in bounds_of(graph).items() if kinds[number] in "iu"}
    ranges = Ranges(bounds, [[each.numpy() for each in given] for given in recorded])
    found: dict[str, Mapping[str, Any]] = {}
    for number, name in enumerate(names):
        if kinds[number] == "f":
            if target in _LOSING_NAN and all(bool(given[number].isfinite().all()) for given in recorded):
                found[name] = {"finite": True}
        elif number in ranges.ends:
            low, high = ranges.ends[number]
            found[name] = {"min": int(low), "max": int(high)}
    return found
