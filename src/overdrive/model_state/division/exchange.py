"""Tensors that pass the border between the program, where all ranks have the whole, and a call, where each has a part.

The rule for gradients: outside they are the whole batch's, the same on all ranks; inside they are those of this rank's
part, times the number of ranks. So what is averaged over ranks at the end of a backward pass is right for a parameter
inside a call, and stays what it is for one that every rank uses outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.ranks.group import Group


@dataclass(frozen=True)
class _Crossing:
    """See `results.Crossing`."""

    group: Group
    dim: int
    sizes: Sequence[int]
    scale: float

    def whole(self, gradient: torch.Tensor) -> torch.Tensor:
        scale = 1 / (self.group.size * self.scale)
        return Gathered.apply(gradient, self.group, self.dim, self.sizes, scale)  # type: ignore[no-untyped-call, no-any-return]

    def part(self, gradient: torch.Tensor) -> torch.Tensor:
        scale = self.group.size * self.scale
        return Part.apply(gradient, self.group, self.dim, self.sizes, scale)  # type: ignore[no-untyped-call, no-any-return]


class Gathered(torch.autograd.Function):
    """The parts of all ranks, one after the other along `dim`; rank r's has `sizes[r]`."""

    @staticmethod
    def forward(ctx: Any, part: Any, group: Group, dim: int, sizes: Sequence[int], scale: float) -> Any:
        ctx.crossing = _Crossing(group, dim, sizes, scale)
        whole = group.gather(part, dim, sizes, "a model's result")
        return whole if scale == 1 else whole * scale

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.crossing.part(gradient), None, None, None, None


class Part(torch.autograd.Function):
    """This rank's part of what all have."""

    @staticmethod
    def forward(ctx: Any, whole: Any, group: Group, dim: int, sizes: Sequence[int], scale: float) -> Any:
        ctx.group, ctx.dim, ctx.sizes, ctx.scale = group, dim, sizes, scale
        part = part_of(whole, dim, group.rank, sizes)
        return part * scale if scale != 1 else part.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        group: Group = ctx.group
        whole = Gathered.apply(gradient, group, ctx.dim, ctx.sizes, ctx.scale / group.size)  # type: ignore[no-untyped-call]
        return whole, None, None, None, None


class Shared(torch.autograd.Function):
    """What every rank has whole inside of a call too; its gradient is the mean of all ranks'."""

    @staticmethod
    def forward(ctx: Any, whole: Any, group: Group) -> Any:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Mean.apply(gradient, ctx.group), None  # type: ignore[no-untyped-call]


class Mean(torch.autograd.Function):
    """Over ranks, of gradients that are each a part's times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, part: Any, group: Group) -> Any:
        return group.sum_(part.detach().clone(memory_format=torch.contiguous_format), "a gradient").div_(group.size)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class Total(torch.autograd.Function):
    """The sum over ranks of a part's number, used inside of a call; each rank's gradient counts for all."""

    @staticmethod
    def forward(ctx: Any, part: Any, group: Group) -> Any:
        ctx.group = group
        return group.sum_(part.detach().clone(memory_format=torch.contiguous_format), "a batch's statistics")

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Total.apply(gradient, ctx.group), None  # type: ignore[no-untyped-call]


def part_of(whole: torch.Tensor, dim: int, rank: int, sizes: Sequence[int]) -> torch.Tensor:
    """A view, or a copy where a view would not lie in one piece as the whole does."""
    part = whole.narrow(dim, sum(sizes[:rank]), sizes[rank])
    return part.contiguous() if dim and whole.is_contiguous() else part


def shares(rows: int, ranks: int) -> list[int]:
    """How many rows each rank has: as equal as can be."""
    return [(rank + 1) * rows // ranks - rank * rows // ranks for rank in range(ranks)]
