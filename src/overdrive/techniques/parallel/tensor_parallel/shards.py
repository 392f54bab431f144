"""Who has the parts of a run or of a trial, and what goes between ranks within the graph of the gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from overdrive.techniques.parallel.tensor_parallel.cuts import Cut


class Shards(Protocol):
    """Who has the parts, and what is told of them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Over ranks, in its place."""

    def gather(self, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        """The whole, of all ranks' parts."""

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        """This rank's part of a parameter."""

    def open_cut(self, name: str, cut: Cut, makers: Collection[str]) -> Cut | None:
        """How a weight that is used so is divided, where that is to be found out; None: it stays whole.

        `makers` made the parts that it takes; none: it is given wholes.
        """

    def gathered(self, makers: Collection[str], why: str, segments: tuple[int, ...]) -> None:
        """What these weights made had to be gathered. `segments`: with which it might not have to be; or empty."""


_shards: list[Shards] = []  # of this process: no module holds them, so that modules can be copied


def shards() -> Shards:
    return _shards[-1]


def divided_by(them: Shards) -> Callable[[], None]:
    """From here on; returns what ends it."""
    _shards.append(them)
    return lambda: _shards.remove(them)


class Summed(torch.autograd.Function):
    """The sum of all ranks' tensors; all of them have its gradient."""

    @staticmethod
    def forward(ctx: Any, part: Any) -> Any:
        return shards().sum_(part.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _Entered.apply(gradient)  # type: ignore[no-untyped-call]


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Any) -> Any:
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return Summed.apply(gradient)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Crossing:
    """See `results.Crossing`."""

    cut: Cut

    def whole(self, gradient: torch.Tensor) -> torch.Tensor:
        return Gathered.apply(gradient, self.cut)  # type: ignore[no-untyped-call, no-any-return]

    def part(self, gradient: torch.Tensor) -> torch.Tensor:
        them = shards()
        part = self.cut.part(entered(gradient), them.rank, them.size)
        # A weight keeps what it is given as its gradient: a view would keep the whole.
        return part.clone(memory_format=torch.contiguous_format)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Any, cut: Cut) -> Any:
        ctx.crossing = _Crossing(cut)
        return shards().gather(part.detach(), cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.crossing.part(gradient), None


_last: dict[int, tuple[Any, Any]] = {}  # by rank, the tensor that entered last, and what it entered as


def entered(whole: torch.Tensor) -> torch.Tensor:
    """What all ranks have, where each computes with it on its own: its gradient is the sum of theirs.

    A tensor that several layers take one after the other enters once: one sum in the backward pass, not three.
    """
    if not (whole.requires_grad and torch.is_grad_enabled()):
        return whole
    rank = shards().rank
    last, as_what = _last.get(rank, (None, None))
    if last is None or last() is not whole:
        as_what = _Entered.apply(whole)  # type: ignore[no-untyped-call]
        _last[rank] = weakref.ref(whole), as_what
    made: torch.Tensor = as_what
    return made


def call_over() -> None:
    """Nothing of a model's call is kept."""
    _last.clear()
