"""Whether the gradients of parts make up those of the whole.

A function of the model's own, or a hook within its call, may do to a gradient what is not linear (clamp it, divide it
by its norm): for a part, whose gradients are the whole's times the number of ranks, that is something else.

Of large models some gradients are made at a time: a model may be divided since all of its gradients do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.model_state.division.likeness import SUMMED, tolerance

_AT_ONCE = 1 << 25  # bytes of gradients, and at least one

Joined = Sequence["tuple[int, int] | None"]  # of a `Way`


@dataclass(frozen=True)
class Added:
    """What a part adds to a total over all parts, and the total as it was given to that part."""

    own: torch.Tensor
    total: torch.Tensor


def gradients_alike(
    whole: Sequence[Any],
    parts: Sequence[Sequence[Any]],
    joined: Joined,
    given: Sequence[Any],
    added: Sequence[Sequence[Added]] = (),
) -> bool:
    """
    Args:
        whole: the results for all samples; their graph is used up.
        parts: of each rank, in their order; likewise.
        given: the tensors of which there are gradients: what is trained, and arguments.
        added: of each part, in their order.
    """
    weights = [_weights(each) if _counts(each) else None for each in whole]
    of_whole = [*zip(whole, weights, strict=True)]
    of_parts: list[tuple[Any, Any]] = []
    for place, (weight, how) in enumerate(zip(weights, joined, strict=True)):
        results = [each[place] for each in parts]
        if weight is None or how is None:
            of_parts += [(each, weight) for each in results]
        elif how == SUMMED:
            of_parts += [(each, weight * len(parts)) for each in results]
        else:
            sizes = [each.shape[how[0]] for each in results]
            own = weight.split(sizes, how[0])  # type: ignore[no-untyped-call]
            of_parts += [(each, part * len(parts)) for each, part in zip(results, own, strict=True)]
    of_parts += _of_totals(of_parts, added)
    largest = 0.0
    apart: dict[torch.dtype, float] = {}  # at most, by the kind of numbers
    for some, again in _groups(given):
        made = zip(_gradients(of_whole, some, again), _gradients(of_parts, some, again), strict=True)
        for one, other in made:
            if one is None or other is None:
                if one is not other:
                    return False
            elif one.numel():
                largest = max(largest, float(one.abs().max()))
                apart[one.dtype] = max(apart.get(one.dtype, 0.0), _apart(one, other / len(parts)))
    # What a sum would have cancelled out is as large as the others' last bits.
    return all(most <= tolerance(kind) * largest for kind, most in apart.items())


def _of_totals(of_parts: Sequence[tuple[Any, Any]], added: Sequence[Sequence[Added]]) -> list[tuple[Any, Any]]:
    """What is added to totals, with the gradients that come to these from all parts, the last one first: it may be made
    of those before it."""
    found: list[tuple[Any, Any]] = []
    for of_each in [*zip(*added, strict=True)][::-1]:
        totals = [each.total for each in of_each if each.total.requires_grad]
        made = [each for each in _gradients([*of_parts, *found], totals, True) if each is not None]
        if made:
            found += [(each.own, torch.stack(made).sum(0)) for each in of_each]
    return found


def gradients_made(results: Sequence[Any], given: Sequence[Any]) -> None:
    """Make the gradients of all results, for what can be seen while they are made."""
    sums = [each.double().sum() for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    pairs = [(each, torch.ones_like(each)) for each in sums]
    for some, again in _groups(given):
        _gradients(pairs, some, again)


def _groups(given: Sequence[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Which gradients are made together, and whether there are more to come."""
    found: list[list[Any]] = [[]]
    size = 0
    for each in given:
        if found[-1] and size + each.nbytes > _AT_ONCE:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.nbytes
    yield from ((some, place < len(found)) for place, some in enumerate(found, 1))


def _counts(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.is_floating_point() and result.requires_grad


def _weights(result: torch.Tensor) -> torch.Tensor:
    """In the gradient that comes in, each element counts otherwise."""
    return torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype, device=result.device).view(result.shape)


def _gradients(pairs: Sequence[tuple[Any, Any]], given: Sequence[Any], again: bool) -> list[torch.Tensor | None]:
    """Of these results, into which these gradients come; `again`: their graph is kept for more."""
    told = [(result, weight) for result, weight in pairs if weight is not None and result.requires_grad]
    if not told or not given:
        return [None] * len(given)
    results, weights = zip(*told, strict=True)
    made = torch.autograd.grad(results, given, weights, retain_graph=again, allow_unused=True)
    return [each if each is None or each.layout is torch.strided else each.to_dense() for each in made]


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """At most, by element: two that are infinite alike, or no numbers, are not."""
    apart = (one - other).abs()
    apart[(one == other) | (one.isnan() & other.isnan())] = 0.0
    return float(apart.nan_to_num_(nan=math.inf, posinf=math.inf).max())
