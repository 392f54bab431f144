"""What the code of a call asks of its batch, and whether each rank can know it: found in calls that nobody sees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from overdrive.model_state.division.chance import Deviation
from overdrive.model_state.division.likeness import Refused, joined
from overdrive.model_state.division.made_again import refuse_made_again
from overdrive.model_state.division.values import LOOKS, READS, Asked, Reduction, Watching, shapes_of
from overdrive.seams.torch.following import Chain, Following
from overdrive.seams.torch.internals import arguments_unchecked, storage_id

_OF_ONE = {*READS, "aten._local_scalar_dense.default", "aten.is_nonzero.default"}


def can_be_known(reads: Iterable[str]) -> bool:
    """Whether these operations read single numbers, one by one."""
    return set(reads) <= _OF_ONE


@dataclass
class _Noted:
    name: str
    x: torch.Tensor
    value: torch.Tensor
    made: torch.Tensor  # the very tensor that the code was given
    compared: list[int] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        return bool(self.compared) and {*self.compared} == {self.x.numel()}


class _Whole:
    """Watches the whole call.

    Args:
        own: ids of the memory of which reads are no matter: the model's own.
        marked: which of the reductions are to be followed.
    """

    def __init__(self, own: Collection[int], marked: Sequence[bool] = (), into: Following | None = None) -> None:
        self._own, self._marked, self._into = own, marked, into
        self.noted: list[_Noted] = []
        self.answers: list[int] = []

    def reduced(self, name: str, x: torch.Tensor, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        refuse_made_again("values of its batch")
        made = call()
        if self._into is not None and any(self._marked[len(self.noted) :][:1]):
            self._into.mark(made)
        self.noted.append(_Noted(name, *_kept(x, made), made))
        return made

    def compared(self, tensor: torch.Tensor, number: int) -> int:
        for each in self.noted:
            if each.made is tensor:
                each.compared.append(number)
        return number

    def read(self, tensor: torch.Tensor, value: Any) -> None:
        if storage_id(tensor) in self._own:
            return
        refuse_made_again("values of its batch")
        if not isinstance(value, int):  # no two batches have the same
            raise Deviation(f"{LOOKS} (a number with a fraction)")
        self.answers.append(value)


class _Part:
    """Watches a call on a part, and gives it the numbers of the whole one.

    Args:
        replayed: which of these.
        into: who follows these.
    """

    def __init__(self, whole: _Whole, replayed: Sequence[bool], own: Collection[int], into: Following | None) -> None:
        self._whole, self._replayed, self._own, self._into = whole, replayed, own, into
        self.inputs: list[torch.Tensor] = []
        self._made: list[torch.Tensor] = []
        self._read = 0

    def reduced(self, name: str, x: torch.Tensor, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        place = len(self.inputs)
        if place >= len(self._replayed) or self._whole.noted[place].name != name:
            raise Deviation(LOOKS)
        made = self._whole.noted[place].value.clone() if self._replayed[place] else call()
        if self._into is not None and self._replayed[place]:
            self._into.mark(made)
        self.inputs.append(_kept(x, made)[0])
        self._made.append(made)
        return made

    def compared(self, tensor: torch.Tensor, number: int) -> int:
        for made, x, noted, replayed in zip(self._made, self.inputs, self._whole.noted, self._replayed, strict=False):
            if made is tensor and replayed and noted.counts:
                if number != x.numel():
                    raise Deviation(LOOKS)
                return noted.x.numel()
        return number

    def read(self, tensor: torch.Tensor, value: Any) -> None:
        if storage_id(tensor) in self._own:
            return
        place, self._read = self._read, self._read + 1
        if self._whole.answers[place : place + 1] != [value]:
            raise Deviation(LOOKS)

    def over(self) -> None:
        if (len(self.inputs), self._read) != (len(self._replayed), len(self._whole.answers)):
            raise Deviation(LOOKS)


def _kept(x: torch.Tensor, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies, by the same operations in every call: they are followed, too."""
    return x.detach().clone(), made.clone()


Within = AbstractContextManager[Any]
Make = Callable[["int | None", Within], Any]


class ValueTrial:
    """Of one call's trial.

    Args: `own`: see `_Whole`.
    """

    def __init__(self, own: Collection[int]) -> None:
        self._own = own
        self._whole = _Whole(own)
        self._rows: list[tuple[int, int] | None] | None = None  # of each reduction; None: it is not known yet

    def of_whole(self) -> Within:
        """Around the whole call, which is noted."""
        self._whole = _Whole(self._own)
        return Watching(self._whole)

    def begin(self) -> None:
        """With another guess of where samples are."""
        self._rows = None

    @contextmanager
    def of_part(self, inputs: list[list[torch.Tensor]] | None = None, into: Following | None = None) -> Iterator[None]:
        """Around a call on a part.

        Args:
            inputs: what is reduced in it is put there.
        """
        watcher = _Part(self._whole, self._replayed, self._own, into)
        with Watching(watcher):
            yield
        watcher.over()
        if inputs is not None:
            inputs.append(watcher.inputs)

    @property
    def _replayed(self) -> list[bool]:
        if self._rows is None:
            return [True] * len(self._whole.noted)
        return [each is not None for each in self._rows]

    def examine(self, make: Make, split: Sequence[int | None], sizes: Sequence[int], leaves: Sequence[Any]) -> None:
        """
        Args:
            make: makes the call on the part of a rank, or whole for None, within that; and puts all back.
            split: where the samples are in each of its arguments, the `leaves`.

        Raises:
            Refused, Deviation: what is read does not come from what all ranks know alone.
        """
        inputs: list[list[torch.Tensor]] = []
        for rank in range(len(sizes)):
            make(rank, self.of_part(inputs))
        self._rows = self._rows_of(inputs, sizes)
        given = [(each, dim) for each, dim in zip(leaves, split, strict=True) if isinstance(each, torch.Tensor)]
        divided = {storage_id(each) for each, dim in given if dim is not None}
        shared = [each for each, dim in given if dim is None and storage_id(each) not in divided]
        inputs = []
        chains = [self._chain(make, rank, shared, inputs) for rank in (None, *range(len(sizes)))]
        # One that is not replayed now may have changed what another is given.
        if not all(_same(chains[0], each) for each in chains[1:]) or self._rows_of(inputs, sizes) != self._rows:
            raise Refused(LOOKS)

    def _rows_of(self, inputs: list[list[torch.Tensor]], sizes: Sequence[int]) -> list[tuple[int, int] | None]:
        return [_rows(each.x, parts, sizes) for each, *parts in zip(self._whole.noted, *inputs, strict=True)]

    def _chain(
        self, make: Make, rank: int | None, shared: list[torch.Tensor], inputs: list[list[torch.Tensor]]
    ) -> Chain:
        """All that is done with what all ranks know, before it is read."""
        following = Following(self._own, shared)

        @contextmanager
        def within() -> Iterator[None]:
            around = (
                Watching(_Whole(self._own, self._replayed, following))
                if rank is None
                else self.of_part(inputs, following)
            )
            with around, following, arguments_unchecked():
                yield

        make(rank, within())
        if not all(following.reads) or len(following.reads) != len(self._whole.answers):
            raise Refused(LOOKS)
        return following.chain

    def found(self, leaves: Sequence[Any]) -> Asked:
        assert self._rows is not None
        noted, answers = self._whole.noted, self._whole.answers
        reductions = tuple(
            Reduction(each.name, rows, rows is not None and each.counts)
            for each, rows in zip(noted, self._rows, strict=True)
        )
        truths = all(isinstance(each, bool) for each in answers)
        return Asked(reductions, tuple(answers), None if truths else shapes_of(leaves))


def _rows(whole: torch.Tensor, parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> tuple[int, int] | None:
    """See `Reduction`."""
    try:
        return joined(parts, whole, sizes, sum(sizes))
    except Refused:
        return None


def _same(one: Chain, other: Chain) -> bool:
    return len(one) == len(other) and all(
        name == another and len(given) == len(others) and all(map(_equal, given, others))
        for (name, given), (another, others) in zip(one, other, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
