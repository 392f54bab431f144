"""Which values of its inputs an artefact is proved for: the runner refuses others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from overdrive.engines.ranges import Bounds, Ranges
from overdrive.targets.child.dimensions import Arrays
from overdrive.targets.order import TRITON

_LOSING_NAN = ("onnx", TRITON, "openvino")  # see `engines.ranges`; AOTInductor's code is PyTorch's own


def proved(
    target: str, bounds: Bounds, names: Sequence[str], recorded: Sequence[Arrays]
) -> dict[str, Mapping[str, Any]]:
    """By input: `finite`, where NaN and infinity are not; `min` and `max` of numbers that may be places.

    Those places are in it that the graph says are there, and what the program gave. Of fractions those have ends alone
    that places are made of: of others the program's own are no more than examples.

    Args:
        bounds: of inputs that places are made of.
    """
    kinds = [each.dtype.kind for each in recorded[0]]
    ranges = Ranges(bounds, [list(map(_numbers, given)) for given in recorded])
    found: dict[str, Mapping[str, Any]] = {}
    for number, name in enumerate(names):
        told: dict[str, Any] = {}
        finite = kinds[number] == "f" and all(bool(np.isfinite(given[number]).all()) for given in recorded)
        if finite and target in _LOSING_NAN:
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
