"""The numbers of parameters of which each rank has a part: told, and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from overdrive.survive.in_parts import Parts


class OtherParts(Exception):
    """A parameter is divided in another way; the message says which."""


def told(parts: Parts, parameter: torch.Tensor, block: Callable[[torch.Tensor], int]) -> list[Any]:
    """As JSON. `block`: keeps what is flat, and gives its number."""
    gradient, looked = parts.gradient(parameter)
    return [block(parts.values(parameter)), None if gradient is None else block(gradient), looked]


def put_back(
    parts: Parts, divided: Sequence[tuple[str, torch.Tensor, list[Any]]], block: Callable[[int], memoryview]
) -> None:
    """
    Args:
        divided: path, parameter and what was told of it.

    Raises:
        OtherParts: this rank has other parts.
    """
    for path, parameter, (values, gradient, looked) in divided:
        here = parts.values(parameter)
        if here.nbytes != len(block(values)):
            raise OtherParts(f"{path} is divided in another way than at the snapshot")
        _fill(here, block(values))
        part = None if gradient is None else torch.empty_like(here)
        if part is not None:
            _fill(part, block(gradient))
        parts.put_gradient(parameter, part, looked)
    parts.make_whole([parameter for _, parameter, _ in divided])


def _fill(flat: torch.Tensor, data: memoryview) -> None:
    if len(data):
        flat.view(torch.uint8).copy_(torch.frombuffer(data, dtype=torch.uint8))
