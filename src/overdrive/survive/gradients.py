"""Which parameters have a gradient, and zeros in their place while the run is made again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import storage_owners, version_of

if TYPE_CHECKING:
    from overdrive.survive.in_parts import Parts
    from overdrive.survive.journal import Journal

_KIND = "leaves"  # of an entry
Numbered = Sequence[tuple[int, Any]]  # optimizers


class Gradients:
    """Of all optimizers of a run.

    Zeros are the same tensor again where nobody has the last one, since a program lets its gradients go in each step:
    those of two layers of 784 x 400 took 175 us to make anew, and 16 us so.

    A digit for each of an optimizer's parameters says whether it had a gradient after the last backward pass, and 2
    that this was sparse, as an embedding's may be: a program may ask it for its rows.
    """

    def __init__(self, parts: Callable[[], Parts | None] = lambda: None) -> None:
        """`parts`: gives what this rank has of parameters that are divided, if any are."""
        self._parts = parts
        self._there: dict[int, str] = {}  # these digits, by the optimizer's number
        self._zeros: dict[int, list[Any]] = {}  # by its parameter's id: a gradient, its owners and its version

    def told(self) -> list[Any]:
        """What the next process needs to know."""
        return [[number, digits] for number, digits in self._there.items()]

    def note(self, optimizers: Numbered, journal: Journal) -> None:
        """After a backward pass."""
        parts = self._parts()
        there = {number: _digits(parameters_of(one), parts) for number, one in optimizers}
        if there == self._there:
            return
        known, self._there = self._there, there
        news = [[number, each] for number, each in there.items() if each != known.get(number, "0" * len(each))]
        if news:
            journal.add(_KIND, news)

    def make(self, optimizers: Numbered, journal: Journal) -> None:
        """Have them as that backward pass left them, with zeros."""
        if journal.peek(_KIND):
            there = {**self._there, **dict(journal.next(_KIND, "")[1])}
            self._there = {number: there[number] for number, _ in optimizers if number in there}
        parts = self._parts()
        for number, optimizer in optimizers:
            for parameter, digit in zip(parameters_of(optimizer), self._there.get(number, ""), strict=False):
                if digit == "0" or (parts is not None and parts.zero_gradient(parameter)):
                    continue
                if parameter.grad is None:
                    parameter.grad = self._zeros_of(parameter) if digit == "1" else _without_rows(parameter)

    def go_on(self, told: list[Any]) -> None:
        """The run was made again up to its snapshot."""
        self._there = dict(told)
        self._zeros.clear()

    def _zeros_of(self, parameter: Any) -> Any:
        kept = self._zeros.get(id(parameter))
        if kept is None or _owners(kept) != kept[1] or not _like(kept[0], parameter):
            kept = self._zeros[id(parameter)] = [parameter.detach().new_zeros(parameter.shape), None, 0]
            kept[1] = _owners(kept)
        elif version_of(kept[0]) != kept[2]:  # they were clipped, say
            kept[0].detach().zero_()
        kept[2] = version_of(kept[0])
        return kept[0]


def _digits(parameters: Iterable[Any], parts: Parts | None) -> str:
    """After each backward pass: no call of ours for each parameter."""
    if parts is not None:
        return "".join(["10"[parts.lacks_gradient(each)] for each in parameters])
    gradients = [each.grad for each in parameters]
    return "".join(["0" if each is None else "12"[each.is_sparse] for each in gradients])


def _without_rows(parameter: Any) -> Any:
    """Zeros, as a sparse gradient that is summed by rows."""
    import torch

    values = parameter.detach()[:0]
    rows = torch.empty(1, 0, dtype=torch.int64, device=values.device)
    return torch.sparse_coo_tensor(rows, values, parameter.shape, is_coalesced=True, check_invariants=False)


def _owners(kept: list[Any]) -> tuple[int | None, int]:
    """Of its memory, and of itself."""
    return storage_owners(kept[0].untyped_storage()), sys.getrefcount(kept[0])


def _like(zeros: Any, parameter: Any) -> bool:
    """Whether it still is what would be made for this parameter."""
    alike = zeros.shape == parameter.shape and zeros.dtype == parameter.dtype and zeros.device == parameter.device
    return alike and not zeros.requires_grad
