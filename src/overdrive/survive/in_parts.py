"""A run of ranks of which each has parts of its own: for a snapshot each writes a file of its own (see `part_files`).

Rank 0 decides, and says after each step what all do: nothing, take a snapshot, or keep the one that was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

_NOTHING, _TAKE, _KEEP, _OVER = range(4)  # rank 0's words; the last: nothing more is taken


class Parts(Protocol):
    """What one rank has of parameters, of their gradients and of optimizers' states."""

    def as_it_is(self) -> AbstractContextManager[None]:
        """Who looks at a tensor or a state within it finds what is here: nothing is made whole, which all would do."""

    def settle(self) -> None:
        """Let go of what is whole and need not be."""

    def called(self, model: Any) -> None:
        """It would be called now, if this run were not made again: its first call divides it."""

    def told(self, tensor: Any) -> str:
        """How it is divided; "" where all of it is here."""

    def values(self, parameter: Any) -> Any:
        """The elements of one that is divided, flat: to write to them changes it."""

    def gradient(self, parameter: Any) -> tuple[Any, bool]:
        """The part of its gradient, or None; and whether the program has looked at it, so that it is whole."""

    def put_gradient(self, parameter: Any, part: Any, looked: bool) -> None: ...

    def make_whole(self, parameters: Sequence[Any]) -> None:
        """These have their values; who has the memory of a whole one is to find all of it. All ranks do so at once."""

    def lacks_gradient(self, parameter: Any) -> bool: ...

    def zero_gradient(self, parameter: Any) -> bool:
        """Have it a gradient, of zeros if it has none; False where it is not divided."""

    def states_of(self, optimizer: Any) -> list[Any]:
        """What is in parts of what it keeps, as JSON."""

    def put_states(self, optimizer: Any, told: list[Any]) -> None: ...


@dataclass(frozen=True)
class InParts:
    """This process as one rank of such a run. The last three are called on all ranks at once.

    Attributes:
        ranks: how many there are.
        here: gives what this rank has, once it has something.
        first: gives rank 0's number.
        told: gives rank 0's thing, which JSON can hold.
        each: gives each rank's number.
    """

    rank: int
    ranks: int
    here: Callable[[], Parts | None]
    first: Callable[[int], int]
    told: Callable[[Any], Any]
    each: Callable[[int], Sequence[int]]

    def agreed(self, wanted: bool, over: bool) -> bool:
        """Of rank 0, once a step: tells whether a snapshot is taken. `over`: none will be any more."""
        self.first(_TAKE if wanted else _OVER if over else _NOTHING)
        return wanted

    def follow(self, keep: Callable[[], bool], over: Callable[[], object]) -> bool:
        """The same of the others. `keep`: keeps what was taken, if it could be written."""
        while (word := self.first(_NOTHING)) == _KEEP:
            self.each(int(keep()))
        if word == _OVER:
            over()
        return word == _TAKE

    def all_have(self, written: bool) -> bool:
        """Of rank 0, which is about to keep a snapshot: whether all have theirs."""
        self.first(_KEEP)
        return all(self.each(int(written)))

    def shared(self, header: dict[str, Any] | None) -> dict[str, Any] | None:
        """Of a snapshot that is taken: what rank 0 has for all, and whose part this is; None where it has nothing."""
        told = self.told(header)
        return told and {**told, "rank": self.rank, "ranks": self.ranks}
