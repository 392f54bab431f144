"""What is known of each model's calls, by their kind: how they are divided, as trials have found it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from overdrive.model_state.division.kinds import of_leaf
from overdrive.model_state.division.values import LOOKS
from overdrive.model_state.division.way import Way
from overdrive.model_state.state import State

_MOST_SIZES = 4  # of one kind of call that are tried: for others it is taken to be the same
_MOST_ANSWERS = 4  # that its code has to what it asks of a batch, and that are tried


class Kind:
    """One kind of call of a model, as it was tried.

    Attributes:
        ways: those that such calls go, by what their code reads of a batch; none where they are made whole.
        state: of the model, when it was tried.
        others: what is trained in such calls, and is no parameter of the model, by what their code reads; as far as it
            was looked at.
        astray: whether the last call read what no trial has seen.
    """

    def __init__(self, ways: Sequence[Way] = (), state: State | None = None, sizes: Sequence[Any] = ()) -> None:
        self.ways, self.state, self._sizes = [*ways], state, {*sizes}
        self.astray = False
        self.others: dict[tuple[int, ...], list[weakref.ref[torch.Tensor]]] = {}

    @property
    def asks(self) -> bool:
        """Whether their code asks values of its batch."""
        return any(each.asks.answers for each in self.ways)

    def way(self, model: Any, leaves: Sequence[Any]) -> Way | None:
        """Of a call with these arguments; None where it is to be tried."""
        way = self._suiting(leaves)
        if way is None or self.astray or way.beyond(leaves):
            return None
        assert self.state is not None
        if not self.state.changed() and way.rows(leaves):
            if _sizes(way, leaves) in self._sizes or len(self._sizes) >= _MOST_SIZES:
                return way
        elif way.effects:  # it does so in each call
            self.state = State([model])
        return None

    def _suiting(self, leaves: Sequence[Any]) -> Way | None:
        return next((each for each in self.ways if each.asks.suits(leaves)), None)

    def beyond(self, leaves: Sequence[Any]) -> bool:
        """Whether all that is unknown is how such calls are divided for as many samples."""
        way = self._suiting(leaves)
        return way is not None and not self.astray and way.beyond(leaves)

    def suiting(self, way: Way, leaves: Sequence[Any]) -> list[Way]:
        """All that a call may go that begins in this way."""
        return [each for each in self.ways if each.asks.suits(leaves) and each.divides() == way.divides()]

    def with_(self, way: Way, model: Any, leaves: Sequence[Any]) -> Kind:
        """What is known after a trial has found this.

        Raises:
            ValueError: its code reads too much of its batches for that.
        """
        own, state = _sizes(way, leaves), State([model])
        if not (self.ways and (self.asks or way.asks.answers)):
            alike = bool(self.ways) and self.ways[0].alike(way)
            return Kind([way.and_of(self.ways[0]) if alike else way], state, [*(self._sizes if alike else ()), own])
        assert self.state is not None
        if self.state.changed():
            return Kind([way], state, [own])
        before = [
            each for each in self.ways if (each.asks.answers, each.asks.shapes) == (way.asks.answers, way.asks.shapes)
        ]
        others = [each for each in self.ways if each not in before]
        if (
            (before and self.astray)
            or len(others) >= _MOST_ANSWERS
            or any(each.divides() != way.divides() for each in others)
        ):
            raise ValueError(LOOKS)
        for each in before:
            way = way.and_of(each) if way.alike(each) else way
        return Kind([*others, way], state, [*self._sizes, own])


class Known:
    """Of one model."""

    def __init__(self) -> None:
        self.by_kind: dict[Any, Kind] = {}
        self.trials = 0
        self.untold = ""  # why the call that is about to be made is made whole

    def whole(self, kind: Any, reason: str) -> None:
        """Calls of that kind are made whole from here on."""
        self.by_kind[kind], self.untold = Kind(), reason


def kind_of(model: Any, leaves: Sequence[Any]) -> Any:
    return model.training, torch.is_grad_enabled(), *map(of_leaf, leaves)


def _sizes(way: Way, leaves: Sequence[Any]) -> Any:
    """All but how many samples there are."""
    return tuple(
        tuple(size for dim, size in enumerate(leaf.shape) if dim != split) if isinstance(leaf, torch.Tensor) else None
        for leaf, split in zip(leaves, way.split, strict=True)
    )
