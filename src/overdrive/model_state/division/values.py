"""Values of its batch that a model's code asks for inside of divided calls: `if mask.all():`, `int(lengths.max())`.

A tensor of integers or truth values that is made one number is so over the samples of all ranks. What the code reads of
such numbers is the same on all ranks then, and is compared with what it read in trials of the call: by other values it
may go another way, which no trial has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from overdrive.model_state.division.chance import Deviation
from overdrive.ranks.group import Group
from overdrive.seams.patch import plain_of
from overdrive.seams.torch.internals import storage_id
from overdrive.seams.torch.reads import is_for_a_seed

LOOKS = "it looks at values of its batch"
_OF_ALL: dict[str, Callable[[Iterable[int]], int]] = {
    "all": all,
    "any": any,
    "sum": sum,
    **dict.fromkeys(("max", "amax"), max),
    **dict.fromkeys(("min", "amin"), min),
}
_REDUCTIONS = {getattr(place, name) for place in (torch, torch.Tensor) for name in _OF_ALL}
_ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")
_COMPARISONS = {*_ORDERS, *(f"__{name}__" for name in _ORDERS)}
READS = ("item", "__bool__", "__int__", "__float__", "__index__")


class OtherAnswers(Deviation):
    """The model's code has read what it read in no trial.

    Attributes:
        answers: all that it has read so far.
    """

    def __init__(self, answers: Sequence[int]) -> None:
        super().__init__(LOOKS)
        self.answers = [*answers]


@dataclass(frozen=True)
class Reduction:
    """One of a way's, in their order.

    Attributes:
        rows: along which dimension the samples are of what is reduced, and how many it has for each; None where it is
            this rank's own alone, which nothing that is read comes from.
        counts: whether it is compared with how many numbers there are, as in `mask.sum() == mask.numel()`.
    """

    name: str
    rows: tuple[int, int] | None = None
    counts: bool = False

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Reduction:
        return cls(told["name"], told["rows"] and tuple(told["rows"]), told["counts"])


@dataclass(frozen=True)
class Asked:
    """What the code of a call asks of its batch; nothing, where it reads nothing.

    Attributes:
        answers: what it read.
        shapes: of the call's arguments, if it is so for these alone: code that knows a number may compare it with the
            size of the batch.
    """

    reductions: tuple[Reduction, ...] = ()
    answers: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def of_plain(cls, told: dict[str, Any]) -> Asked:
        shapes = told["shapes"]
        return cls(
            tuple(map(Reduction.of_plain, told["reductions"])),
            tuple(told["answers"]),
            None if shapes is None else tuple(map(tuple, shapes)),
        )

    def suits(self, leaves: Sequence[Any]) -> bool:
        return self.shapes is None or self.shapes == shapes_of(leaves)


NOTHING = Asked()


def shapes_of(leaves: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each.shape) for each in leaves if isinstance(each, torch.Tensor))


class Watcher(Protocol):
    def reduced(self, name: str, x: torch.Tensor, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What a reduction of all of `x` gives here."""

    def compared(self, tensor: torch.Tensor, number: int) -> int:
        """What the tensor is compared with in its place."""

    def read(self, tensor: torch.Tensor, value: Any) -> None: ...


class Watching(TorchFunctionMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func, kwargs = plain_of(func), kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _OF_ALL and func in _REDUCTIONS and len(args) == 1 and not kwargs and _counts(args[0]):
            return self._watcher.reduced(name, args[0], lambda: func(*args))
        if name in _COMPARISONS and len(args) == 2 and isinstance(args[0], torch.Tensor) and type(args[1]) is int:
            args = (args[0], self._watcher.compared(*args))
        made = func(*args, **kwargs)
        if name in READS and args and isinstance(args[0], torch.Tensor) and not is_for_a_seed():
            self._watcher.read(args[0], made)
        return made


def _counts(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and x.layout is torch.strided
        and not (x.is_floating_point() or x.is_complex() or x.is_quantized)
    )


@dataclass
class Values:
    """Of one divided call, on this rank.

    Args:
        known: what was asked in trials of such calls; calls in them are divided alike.
        own, rows: how many samples are this rank's, and how many there are.
        but: what of it is no matter: the model's own.
    """

    group: Group
    known: Sequence[Asked]
    own: int
    rows: int
    but: Callable[[], Iterable[torch.Tensor]]
    _reduced: int = 0
    _read: list[int] = field(default_factory=list)
    _sums: list[tuple[torch.Tensor, int, int]] = field(default_factory=list)  # of this rank and of all, how many

    @cached_property
    def _ids(self) -> set[int]:
        return {storage_id(each) for each in self.but()}

    def asked(self) -> Asked:
        """Which of those it was.

        Raises:
            Deviation: none.
        """
        found = [each for each in self.known if len(each.answers) == len(self._read)]
        if len(found) != 1 or len(found[0].reductions) != self._reduced:
            raise Deviation(LOOKS)
        return found[0]

    def reduced(self, name: str, x: torch.Tensor, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        place, self._reduced = self._reduced, self._reduced + 1
        found = {each.reductions[place] for each in self.known if place < len(each.reductions)}
        if len(found) != 1 or (reduction := found.pop()).name != name:
            raise Deviation(f"it makes one number of its batch ({name}) as it did not before")
        value = call()
        if reduction.rows is None:
            return value
        dim, each = reduction.rows
        if x.dim() <= dim or x.shape[dim] != each * self.own:
            raise Deviation(f"it makes one number of its batch ({name}) as it did not before")
        number: Any = value.tolist()  # `int` of a tensor is the program's way to read: it asks rank 0
        told = self.group.of_all([number], f"the {name} of a batch, its number {place + 1}")
        made = torch.tensor(_OF_ALL[name](number for [number] in told), dtype=value.dtype, device=value.device)
        if reduction.counts:
            self._sums.append((made, x.numel(), x.numel() // self.own * self.rows))
        return made

    def compared(self, tensor: torch.Tensor, number: int) -> int:
        for made, own, of_all in self._sums:
            if made is tensor:
                if number != own:
                    raise Deviation(LOOKS)
                return of_all
        return number

    def read(self, tensor: torch.Tensor, value: Any) -> None:
        if storage_id(tensor) in self._ids:
            return
        self._read.append(value)
        count = len(self._read)
        self.known = [each for each in self.known if each.answers[:count] == tuple(self._read)]
        if not self.known:
            raise OtherAnswers(self._read)
