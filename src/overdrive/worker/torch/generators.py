"""The states of the random generators, as files of `torch.save` hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from overdrive.core.rng import States

Plain = dict[str, Any]


def plain_states() -> Plain:
    """Of now, as `States.plain`; but a generator's hundreds of numbers are one tensor. One by one they take 4 ms to
    read, which a proof does hundreds of times."""
    return _with_numbers(States.now().plain(), lambda numbers: torch.tensor(numbers, dtype=torch.int64, device="cpu"))


def restore(saved: Plain) -> None:
    States.of_plain(_with_numbers(saved, torch.Tensor.tolist)).restore()


def _with_numbers(plain: Plain, convert: Callable[[Any], Any]) -> Plain:
    (version, numbers, spare), numpy = plain["python"], plain["numpy"]
    if isinstance(numpy, list):
        numpy = [numpy[0], convert(numpy[1]), *numpy[2:]]
    return {**plain, "python": [version, convert(numbers), spare], "numpy": numpy}
