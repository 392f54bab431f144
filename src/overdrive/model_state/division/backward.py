"""Whether the gradients of parts make up those of the whole.

A function of the model's own, or a hook within its call, may do to a gradient what is not linear (clamp it, divide it
by its norm): for a part, whose gradients are the whole's times the number of ranks, that is something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from overdrive.model_state.division.likeness import SUMMED, tolerance

Joined = Sequence["tuple[int, int] | None"]  # of a `Way`


def gradients_alike(whole: Sequence[Any], parts: Sequence[Sequence[Any]], joined: Joined, given: Sequence[Any]) -> bool:
    """
    Args:
        whole: the results for all samples; their graph is used up.
        parts: of each rank, in their order; likewise.
        given: the tensors of which there are gradients: what is trained, and arguments.
    """
    weights = [_weights(each) if _counts(each) else None for each in whole]
    expected = _gradients([*zip(whole, weights, strict=True)], given)
    pairs: list[tuple[Any, Any]] = []
    for place, (weight, how) in enumerate(zip(weights, joined, strict=True)):
        results = [each[place] for each in parts]
        if weight is None or how is None:
            pairs += [(each, weight) for each in results]
        elif how == SUMMED:
            pairs += [(each, weight * len(parts)) for each in results]
        else:
            sizes = [each.shape[how[0]] for each in results]
            own = weight.split(sizes, how[0])  # type: ignore[no-untyped-call]
            pairs += [(each, part * len(parts)) for each, part in zip(results, own, strict=True)]
    found = [each if each is None else each / len(parts) for each in _gradients(pairs, given)]
    largest = max((float(each.abs().max()) for each in expected if each is not None and each.numel()), default=0.0)
    return all(_alike(*pair, largest) for pair in zip(expected, found, strict=True))


def _counts(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.is_floating_point() and result.requires_grad


def _weights(result: torch.Tensor) -> torch.Tensor:
    """In the gradient that comes in, each element counts otherwise."""
    return torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype, device=result.device).view(result.shape)


def _gradients(pairs: Sequence[tuple[Any, Any]], given: Sequence[Any]) -> list[torch.Tensor | None]:
    """Of these results, into which these gradients come."""
    told = [(result, weight) for result, weight in pairs if weight is not None and result.requires_grad]
    if not told or not given:
        return [None] * len(given)
    made = torch.autograd.grad([each for each, _ in told], given, [each for _, each in told], allow_unused=True)
    return [each if each is None or each.layout is torch.strided else each.to_dense() for each in made]


def _alike(one: torch.Tensor | None, other: torch.Tensor | None, largest: float) -> bool:
    """What a sum would have cancelled out is as large as the others' last bits."""
    if one is None or other is None:
        return one is None and other is None
    return torch.allclose(one, other, rtol=0.0, atol=tolerance(one.dtype) * largest, equal_nan=True)
