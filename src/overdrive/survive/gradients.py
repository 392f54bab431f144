"""Which parameters have a gradient, and zeros in their place while the run is made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from overdrive.seams.torch.internals import storage_owners, version_of

if TYPE_CHECKING:
    from overdrive.survive.journal import Journal

_KIND = "leaves"  # of an entry


class Gradients:
    """Of all optimizers of a run.

    Zeros are the same tensor again where nobody has the last one, since a program lets its gradients go in each step:
    those of two layers of 784 x 400 took 175 us to make anew, and 16 us so.

    Attributes:
        there: a digit for each parameter: whether it had a gradient after the last backward pass.
    """

    def __init__(self) -> None:
        self.there = ""
        self._lacking: list[bool] = []  # the same, the other way round
        self._zeros: dict[int, list[Any]] = {}  # by its parameter's id: a gradient, its owners and its version

    def note(self, optimizers: Sequence[Any], journal: Journal) -> None:
        """After a backward pass."""
        lacking = [each.grad is None for one in optimizers for group in one.param_groups for each in group["params"]]
        if lacking != self._lacking:
            self._lacking = lacking
            there = "".join("10"[each] for each in lacking)
            if there != self.there:
                self.there = there
                journal.add(_KIND, there)

    def make(self, optimizers: Sequence[Any], journal: Journal) -> None:
        """Have them as that backward pass left them, with zeros."""
        if journal.peek(_KIND):
            self.there = journal.next(_KIND, "")[1]
        for parameter, digit in zip(_parameters(optimizers), self.there, strict=False):
            if digit == "1" and parameter.grad is None:
                parameter.grad = self._zeros_of(parameter)

    def go_on(self, there: str) -> None:
        """The run was made again up to its snapshot."""
        self.there = there
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


def _owners(kept: list[Any]) -> tuple[int | None, int]:
    """Of its memory, and of itself."""
    return storage_owners(kept[0].untyped_storage()), sys.getrefcount(kept[0])


def _like(zeros: Any, parameter: Any) -> bool:
    """Whether it still is what would be made for this parameter."""
    alike = zeros.shape == parameter.shape and zeros.dtype == parameter.dtype and zeros.device == parameter.device
    return alike and not zeros.requires_grad


def _parameters(optimizers: Sequence[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
