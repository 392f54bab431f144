"""Which values of its inputs an artefact is proved for: the runner refuses others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from overdrive.engines.bounds import bounds_of, placing
from overdrive.engines.ranges import Ranges
from overdrive.targets.order import TRITON

_LOSING_NAN = ("onnx", TRITON, "openvino")  # see `engines.ranges`; AOTInductor's code is PyTorch's own


def proved(
    target: str, graph: Any, names: Sequence[str], recorded: Sequence[Sequence[torch.Tensor]]
) -> dict[str, Mapping[str, Any]]:
    """By input: `finite`, where NaN and infinity are not; `min` and `max` of numbers that may be places.

    Those places are in it that the graph says are there, and what the program gave. Of fractions those have ends alone
    that places are made of: of others the program's own are no more than examples.
    """
    kinds = [each.numpy().dtype.kind for each in recorded[0]]
    bounds = {number: ends for number, ends in bounds_of(graph).items() if kinds[number] in "iu"}
    bounds |= {number: None for number in placing(graph) if kinds[number] == "f"}
    ranges = Ranges(bounds, [[_numbers(each.numpy()) for each in given] for given in recorded])
    found: dict[str, Mapping[str, Any]] = {}
    for number, name in enumerate(names):
        told: dict[str, Any] = {}
        finite = all(bool(given[number].isfinite().all()) for given in recorded)
        if finite and kinds[number] == "f" and target in _LOSING_NAN:
            told["finite"] = True
        if number in ranges.ends:
            # Infinity, which the program may have given itself, is no end.
            ends = dict(zip(("min", "max"), ranges.ends[number], strict=True))
            number_of = float if kinds[number] == "f" else int
            told |= {end: number_of(value) for end, value in ends.items() if math.isfinite(value)}
        if told:
            found[name] = told
    return found


def _numbers(array: Any) -> Any:
    return array[~np.isnan(array)] if array.dtype.kind == "f" else array
