"""Which sums over its batch a model's code takes by hand, and whether parts make them up: in calls that nobody sees.

What is summed is found by its sizes, in the whole call and in a part. A part is then given the whole's totals, and what
it adds to each is kept: together they must be these, and gradients that come to a total go to all that was added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from overdrive.model_state.division.backward import Added
from overdrive.model_state.division.by_hand import Known, Taken, Watching, kind_of
from overdrive.model_state.division.likeness import Refused, tolerance
from overdrive.model_state.division.losses import Losses
from overdrive.model_state.division.made_again import refuse_made_again
from overdrive.model_state.division.sizes import Noted, Numbers, numbers_of

_MOST = 64  # totals of a call: each takes a backward pass of its own
_OTHERWISE, _NOT_ONE = "what it sums hangs on its batch", "it sums what is not one a sample"


_Summed = tuple[str, tuple[int, ...], tuple[int, ...]]  # what is summed: the function's name, the shape, the dimensions


class _Sizes:
    def __init__(self) -> None:
        self.noted: list[_Summed] = []
        self.numbers: list[Noted] = []

    def summed(self, asked: Taken, call: Callable[[], Any]) -> Any:
        self.noted.append((asked.name, tuple(asked.x.shape), asked.dims))
        return call()

    def number(self, name: str, number: int | float) -> int | float:
        self.numbers.append((name, number))
        return number


class _Watcher:
    """
    Attributes:
        counts: of the numbers that means are taken over.
    """

    def __init__(self, known: Sequence[Known]) -> None:
        self._known, self._place = known, 0
        self.counts: list[int] = []

    def summed(self, asked: Taken, call: Callable[[], Any]) -> Any:
        place, self._place = self._place, self._place + 1
        if place >= len(self._known) or self._known[place].name != asked.name:
            raise Refused(_OTHERWISE)
        if not self._known[place].whole:
            return call()
        refuse_made_again("what it sums over its batch")
        return asked.made(self, kind_of(call))

    def total(self, own: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def counted(self, own: int) -> int:
        self.counts.append(own)
        return own

    def number(self, name: str, number: int | float) -> int | float:
        return number


class _Whole(_Watcher):
    """
    Attributes:
        totals: each, and how large it is at most before what is summed cancels out.
    """

    def __init__(self, known: Sequence[Known]) -> None:
        super().__init__(known)
        self.totals: list[tuple[torch.Tensor, float]] = []

    def total(self, own: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        self.totals.append((own.detach().clone(), float(of.detach().double().abs().sum())))
        return own


class _Part(_Watcher):
    """
    Args:
        numbers, own, rows: see `ByHand`.
    """

    def __init__(self, known: Sequence[Known], whole: _Whole, numbers: Numbers | None, own: int, rows: int) -> None:
        super().__init__(known)
        self._whole, self._numbers, self._number = whole, numbers, 0
        self._own, self._rows = own, rows
        self.added: list[Added] = []

    def total(self, own: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        place = len(self.added)
        if place >= len(self._whole.totals) or self._whole.totals[place][0].shape != own.shape:
            raise Refused(_OTHERWISE)
        whole = self._whole.totals[place][0].clone()
        if own.requires_grad:
            whole.requires_grad_()
        self.added.append(Added(own, whole))
        return whole.clone()  # which the model's code may write to

    def counted(self, own: int) -> int:
        place = len(self.counts)
        super().counted(own)
        if place >= len(self._whole.counts):
            raise Refused(_OTHERWISE)
        return self._whole.counts[place]

    def number(self, name: str, number: int | float) -> int | float:
        if self._numbers is None:
            return number
        place, self._number = self._number, self._number + 1
        try:
            return self._numbers.of_all(place, name, number, self._own, self._rows)
        except ValueError:
            raise Refused(_OTHERWISE) from None

    @property
    def over(self) -> bool:
        """Whether it has come to all that it was to come to."""
        counted = (len(self.added), len(self.counts)) == (len(self._whole.totals), len(self._whole.counts))
        return counted and (self._numbers is None or self._number == len(self._numbers.each))


class ByHandTrial:
    """Of one call's trial, in one guess of where its samples are.

    Args:
        losses: what PyTorch's functions make is whole in it, too: it may be added to what is made by hand.
        but_numbers: see `Watching`.

    Attributes:
        known, numbers: see `ByHand`.
    """

    def __init__(self, losses: Losses, but_numbers: bool) -> None:
        self._losses, self._but_numbers = losses, but_numbers
        self._noted: list[_Sizes] = []
        self.known: tuple[Known, ...] = ()
        self.numbers: Numbers | None = None
        self._whole, self._rows = _Whole(()), 0
        self._parts: list[_Part] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Around the whole call, and then around the first part's."""
        self._noted.append(_Sizes())
        with Watching(self._noted[-1], self._but_numbers):
            yield

    def tries(self, rows: int, own: int) -> Iterator[None]:
        """Goes through what may make the parts up, the simplest first: sums over samples and losses alone, and together
        with numbers that hang on how many samples there are, which were so many in the whole call and in the part."""
        (whole, part), self._rows = self._noted, rows
        if [name for name, *_ in whole.noted] != [name for name, *_ in part.noted]:
            return
        pairs = zip(whole.noted, part.noted, strict=True)
        known = [Known(one[0], _over_samples(one, other)) for one, other in pairs]
        found = any(each.whole for each in known)
        self.known = tuple(known) if found else ()
        if found or self._losses.totals:
            yield
        self.numbers = numbers_of(whole.numbers, part.numbers, rows, own)
        if self.numbers is not None:
            yield

    @contextmanager
    def of_whole(self) -> Iterator[None]:
        self._whole, self._parts = _Whole(self.known), []
        with self._watched(self._whole):
            yield
        if len(self._whole.totals) > _MOST:
            raise Refused("it sums its batch in many places")

    @contextmanager
    def of_part(self, own: int, compared: bool = False) -> Iterator[None]:
        """
        Args:
            own: how many samples are this part's.
            compared: it is one of those that are.
        """
        part = _Part(self.known, self._whole, self.numbers, own, self._rows)
        with self._watched(part):
            yield
        if not part.over:
            raise Refused(_OTHERWISE)
        if compared:
            self._parts.append(part)

    @contextmanager
    def _watched(self, watcher: _Whole | _Part) -> Iterator[None]:
        self._losses.whole, self._losses.sums = watcher.total, self.numbers is not None
        try:
            watched = self.known or self.numbers is not None
            with Watching(watcher, self._but_numbers) if watched else nullcontext():
                yield
        finally:
            self._losses.whole, self._losses.sums = None, False

    def added(self) -> list[list[Added]]:
        """Of each part, what it adds to each total.

        Raises:
            Refused: together that is not the whole's.
        """
        counts = [each.counts for each in self._parts]
        if [sum(each) for each in zip(*counts, strict=True)] != self._whole.counts:
            raise Refused(_NOT_ONE)
        for place, (total, size) in enumerate(self._whole.totals):
            parts = [each.added[place].own.detach() for each in self._parts]
            if any(each.dtype != total.dtype for each in parts):
                raise Refused(_OTHERWISE)
            apart = (torch.stack(parts).double().sum(0) - total.double()).abs()
            most = tolerance(total.dtype) * size if total.is_floating_point() else 0.0
            if apart.numel() and not float(apart.max()) <= most:
                raise Refused(_NOT_ONE)
        return [each.added for each in self._parts]


def _over_samples(whole: _Summed, part: _Summed) -> bool:
    """Whether the dimensions that are summed are those of which a part has less."""
    (_, one, dims), (_, other, _) = whole, part
    apart = {dim for dim, (a, b) in enumerate(zip(one, other, strict=False)) if a != b}
    return len(one) == len(other) and bool(apart) and apart <= {*dims}
