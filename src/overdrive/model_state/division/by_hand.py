"""Sums that a model's code takes over its batch by hand inside of divided calls: `x.mean(0)`, `(a - b).var()`.

They are over the samples of all ranks: each rank sums its own, and the total has the gradients of all (see `exchange`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from overdrive.core.flag import Flag
from overdrive.model_state.division.chance import Deviation
from overdrive.model_state.division.exchange import Total
from overdrive.model_state.division.sizes import Numbers, in_arithmetic
from overdrive.ranks.group import Group
from overdrive.seams.patch import plain_of

_SUMS, _SPREADS = ("mean", "sum"), ("var", "std", "var_mean", "std_mean")
_FUNCTIONS = {
    getattr(place, name) for place in (torch, torch.Tensor) for name in (*_SUMS, *_SPREADS) if hasattr(place, name)
}
_ORDER = {
    **dict.fromkeys(_SUMS, ("input", "dim", "keepdim")),
    **dict.fromkeys(_SPREADS, ("input", "dim", "unbiased", "keepdim")),
}
_NARROW = (torch.float16, torch.bfloat16)
_aside = Flag()

Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # see `Totals.total`


class Totals(Protocol):
    def total(self, own: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        """That of the whole batch, of this part's sum; `of`: what it sums."""

    def counted(self, own: int) -> int:
        """How many there are in the whole batch, of how many in this part."""


def aside() -> Flag:
    """What is summed within this is not the model's code's own."""
    return _aside


@dataclass(frozen=True)
class Taken:
    """What is asked of a tensor."""

    name: str
    x: torch.Tensor
    dims: tuple[int, ...]
    keep: bool
    dtype: torch.dtype | None
    correction: float

    def made(self, totals: Totals, kind: torch.dtype) -> Any:
        """Over the whole batch; `kind`: of what type."""
        x = self.x.float() if self.x.dtype in _NARROW else self.x
        if self.name == "sum":
            return totals.total(x.sum(self.dims, keepdim=self.keep, dtype=self.dtype), x).to(kind)
        count = totals.counted(math.prod(x.shape[dim] for dim in self.dims))
        if self.name == "mean":
            return (totals.total(x.sum(self.dims, keepdim=self.keep, dtype=self.dtype), x) / count).to(kind)
        mean = totals.total(x.sum(self.dims, keepdim=True), x) / count
        squares = (x - mean).square()
        made = totals.total(squares.sum(self.dims, keepdim=self.keep), squares) / max(0.0, count - self.correction)
        if self.name.startswith("std"):
            none = made == 0  # where PyTorch's has a gradient of zero
            made = made.masked_fill(none, 1.0).sqrt().masked_fill(none, 0.0)
        made = made.to(kind)
        if not self.name.endswith("_mean"):
            return made
        return made, (mean if self.keep else mean.squeeze(self.dims)).to(kind)


def taken(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Taken | None:
    """None where it is asked in another way than is known here."""
    given = dict(zip(_ORDER[name], args, strict=False))
    for key, value in kwargs.items():
        given[{"axis": "dim", "keepdims": "keepdim"}.get(key, key)] = value
    x, dim, dtype = given.pop("input", None), given.pop("dim", None), given.pop("dtype", None)
    keep, unbiased = given.pop("keepdim", False), given.pop("unbiased", True)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = given.pop("correction", None)
    correction = (1 if unbiased or unbiased is None else 0) if correction is None else correction
    dims = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, (tuple, list)) else ()
    usual = dim is None or isinstance(dim, (int, tuple, list))
    if given or len(args) > len(_ORDER[name]) or not usual or not isinstance(x, torch.Tensor) or not x.dim():
        return None
    if x.layout is not torch.strided or x.is_complex() or not all(type(each) is int for each in dims):
        return None
    dims = tuple(sorted(each % x.dim() for each in dims)) or tuple(range(x.dim()))
    return Taken(name, x, dims, bool(keep), dtype, float(correction))


@dataclass(frozen=True)
class Known:
    """One of a way's, in their order; `whole`: it is over the samples of all ranks."""

    name: str
    whole: bool

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Known:
        return cls(told["name"], told["whole"])


class Watcher(Protocol):
    def summed(self, asked: Taken, call: Callable[[], Any]) -> Any:
        """What is given in its place; `call` makes it of the part, as PyTorch does."""

    def number(self, name: str, number: int | float) -> int | float:
        """What is computed with in its place."""


class Watching(TorchFunctionMode):
    """Args: `but_numbers`: somebody else watches sums of all of a tensor of integers (see `values`)."""

    def __init__(self, watcher: Watcher, but_numbers: bool) -> None:
        super().__init__()
        self._watcher, self._but_numbers = watcher, but_numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func, kwargs = plain_of(func), kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ORDER and func in _FUNCTIONS and not _aside:
            asked = taken(name, args, kwargs)
            if asked is not None and not (self._but_numbers and _is_number(asked, args, kwargs)):
                return self._watcher.summed(asked, lambda: func(*args, **kwargs))
        elif in_arithmetic(name, args, kwargs) and not _aside:
            args = (args[0], self._watcher.number(name, args[1]))
        return func(*args, **kwargs)


def _is_number(asked: Taken, args: Any, kwargs: Any) -> bool:
    return asked.name == "sum" and len(args) == 1 and not kwargs and not asked.x.is_floating_point()


@dataclass
class ByHand:
    """Of one divided call, on this rank.

    Args:
        known: what was summed in the trial of such a call.
        numbers: what it computed with, and hangs on how many samples there are; None where nothing does.
        own, rows: how many samples are this rank's, and how many there are.
    """

    group: Group
    known: Sequence[Known]
    numbers: Numbers | None = None
    own: int = 0
    rows: int = 0
    _place: int = 0
    _number: int = 0

    def watched(self, but_numbers: bool) -> AbstractContextManager[Any]:
        return Watching(self, but_numbers)

    def total(self, own: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return Total.apply(own, self.group)  # type: ignore[no-untyped-call, no-any-return]

    def counted(self, own: int) -> int:
        return sum(each for [each] in self.group.of_all([own], "how much a batch is the mean of"))

    def summed(self, asked: Taken, call: Callable[[], Any]) -> Any:
        place, self._place = self._place, self._place + 1
        if place >= len(self.known) or self.known[place].name != asked.name:
            raise Deviation(f"it sums its batch ({asked.name}) as it did not before")
        return asked.made(self, kind_of(call)) if self.known[place].whole else call()

    def number(self, name: str, number: int | float) -> int | float:
        if self.numbers is None:
            return number
        place, self._number = self._number, self._number + 1
        try:
            return self.numbers.of_all(place, name, number, self.own, self.rows)
        except ValueError:
            raise Deviation(f"it computes with {number} as it did not before") from None

    def over(self) -> None:
        """
        Raises:
            Deviation: less was summed, or computed with, than in the trial.
        """
        if self._place != len(self.known) or (self.numbers and self._number != len(self.numbers.each)):
            raise Deviation("it sums its batch as it did not before")


def kind_of(call: Callable[[], Any]) -> torch.dtype:
    """Of what type its result is."""
    with torch.no_grad():
        made = call()
    kind: torch.dtype = (made[0] if isinstance(made, tuple) else made).dtype
    return kind
