"""Means that PyTorch's functions for losses take inside of divided calls: they are over the samples of all ranks.

What a rank's part gives is its share of the whole's loss, and the sum over ranks is what one process gives: also where
labels are ignored, of which one part has more than another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.model_state.division.by_hand import Sum, aside
from overdrive.ranks.group import Group

_BY_CLASS = ("cross_entropy", "nll_loss")
# The mean of these is over all elements of what is compared.
_BY_ELEMENT = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss", "poisson_nll_loss"),
)


class Losses:
    """
    Attributes:
        totals: in trial calls, of each such mean in their order, how much it was taken over; else None.
        whole: makes the whole's of a part's share, where the model adds what it has made by hand: the call's result is
            the whole's then. None: shares are its result, and these are added.
        sums: whether losses that are sums are made whole as well. They need not be where nothing but their share is
            made of them.
        parts: in trial calls of a part, how much of these there was in all parts so far.
    """

    def __init__(self) -> None:
        self.group: Group | None = None
        self.active = Flag()
        self.whole: Sum | None = None
        self.totals: list[torch.Tensor] | None = None
        self.parts: list[torch.Tensor] = []
        self.sums, self._answers = False, Flag()
        self.replayed = -1  # in trial calls of a part, how many of these were used; -1: they are noted

    def answer(self, name: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An answer to the seam *loss computed*."""
        if self._answers or (self.totals is None and not self.active):  # within a mode of PyTorch's it comes here again
            return None
        with self._answers, aside():
            return self._answer(name, plain, args, kwargs)

    def _answer(self, name: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            given = _signature(plain).bind(*args, **kwargs).arguments
            is_sum = _is_sum(name, given)
            own = None if is_sum else _taken_over(name, given)
            if own is None and not (is_sum and self.sums and self.whole is not None):
                return None
            if own is not None and self.totals is not None and self.replayed < 0:
                self.totals.append(own)
                return None
            made = _summed(plain, given)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # the program's own call tells it, if it is an error at all
        summed, kind = made  # ranks meet from here on: what fails now is no matter of this rank alone
        if own is None:
            assert self.whole is not None
            return self.whole(summed, summed).to(kind)
        share = summed / self._total(own).to(summed.device)
        return (share if self.whole is None else self.whole(share, share)).to(kind)

    def _total(self, own: torch.Tensor) -> torch.Tensor:
        if self.totals is None:
            assert self.group is not None
            return self.group.sum_(own.clone(), "how much a loss is the mean of")
        place, self.replayed = self.replayed, self.replayed + 1
        if place >= len(self.totals):  # the whole had no such loss: nothing will be alike
            return own
        if place == len(self.parts):
            self.parts.append(torch.zeros_like(own))
        self.parts[place] = self.parts[place] + own
        return self.totals[place]

    def complete(self) -> bool:
        """Whether the parts had together what the whole had."""
        return (
            self.totals is not None
            and len(self.parts) == len(self.totals)
            and all(torch.allclose(*pair) for pair in zip(self.parts, self.totals, strict=True))
        )


class Summed(torch.autograd.Function):
    """The sum of all ranks' shares. Inside, gradients are times the number of ranks (see `exchange`)."""

    @staticmethod
    def forward(ctx: Any, share: Any, group: Group) -> Any:
        ctx.size = group.size
        return group.sum_(share.detach().clone(memory_format=torch.contiguous_format), "a model's loss")

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.size, None


def _summed(plain: Callable[..., Any], given: dict[str, Any]) -> tuple[torch.Tensor, torch.dtype]:
    """The sum, and of what type the mean would be. A sum in 16 bits would be rounded, or beyond what these hold."""
    x = given["input"]
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    if narrow:
        given = {name: _wide(each) for name, each in given.items()}
    summed = plain(**{**given, "reduction": "sum"})
    return summed, x.dtype if narrow and not torch.is_autocast_enabled(x.device.type) else summed.dtype


def _wide(each: Any) -> Any:
    return each.float() if isinstance(each, torch.Tensor) and each.is_floating_point() else each


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def _is_sum(name: str, given: dict[str, Any]) -> bool:
    return name in (*_BY_CLASS, *_BY_ELEMENT) and _reduction(given) == "sum"


def _reduction(given: dict[str, Any]) -> str:
    """Empty where it is told as it was before PyTorch 0.4, or not of two tensors."""
    tensors = isinstance(given.get("input"), torch.Tensor) and isinstance(given.get("target"), torch.Tensor)
    plain = tensors and given.get("size_average") is given.get("reduce") is None
    return str(given.get("reduction", "mean")) if plain else ""


def _taken_over(name: str, given: dict[str, Any]) -> torch.Tensor | None:
    """The weight of all that the mean is taken over; None where it is no mean, or is none of those that are known."""
    x: Any = given.get("input")
    target: Any = given.get("target")
    reduction = _reduction(given)
    if name == "kl_div" and reduction == "batchmean" and x.dim():
        return torch.tensor(float(len(x)), dtype=torch.float64, device=x.device)
    if reduction != "mean":
        return None
    if name in _BY_CLASS:
        return _classes(x, target, given)
    if name not in _BY_ELEMENT:
        return None
    count = torch.broadcast_shapes(x.shape, target.shape).numel()  # type: ignore[no-untyped-call]
    return torch.tensor(float(count), dtype=torch.float64, device=x.device)


def _classes(x: torch.Tensor, target: torch.Tensor, given: dict[str, Any]) -> torch.Tensor | None:
    weight, ignored = given.get("weight"), given.get("ignore_index", -100)
    if target.is_floating_point():  # of each class its probability
        count = target.numel() // target.shape[1] if target.dim() > 1 else 1
        return torch.tensor(float(count), dtype=torch.float64, device=x.device)
    counts = target != ignored
    weights = counts if weight is None else weight.detach().double()[target.where(counts, 0)] * counts
    total: torch.Tensor = weights.sum(dtype=torch.float64)
    return total
