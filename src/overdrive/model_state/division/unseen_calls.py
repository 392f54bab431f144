"""Calls of a model that nobody sees: what one leaves behind is compared with what the whole one did, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from overdrive.core.rng import States
from overdrive.model_state.division.call import CallToDivide
from overdrive.model_state.division.likeness import Refused, alike
from overdrive.model_state.division.tree import flatten
from overdrive.model_state.quiet import quiet
from overdrive.model_state.state import State
from overdrive.seams.keras.layers_on_torch import buffers_of
from overdrive.seams.torch.moment import Circumstances

_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


class UnseenCalls:
    """
    Attributes:
        roots: what may be changed by a call: the model, and what it is given and is no tensor. That may be an object
            that it writes to: all ranks have one, and not a copy.
        effects: whether the whole call changes attributes.
    """

    effects = False

    def __init__(self, asked: CallToDivide, leaves: Sequence[Any]) -> None:
        self._asked = asked
        self._circumstances = Circumstances()
        self.roots = [asked.model, *(each for each in leaves if not isinstance(each, torch.Tensor))]
        self._state = State(self.roots)
        self._buffers = [(each, each.detach().clone()) for each in buffers_of(asked.model)]
        self._chance_before = States.now()
        self._said: list[str] = []

    def make(self, leaves: Sequence[Any], within: AbstractContextManager[Any] = _AS_IT_IS) -> list[Any]:
        """The leaves of its result for these."""
        with ExitStack() as stack:
            stack.enter_context(within)
            stack.enter_context(self._circumstances.again())
            said = stack.enter_context(quiet(self._state.reach.loggers))
            made = flatten(self._asked.made(leaves), self._asked.objects)[0]
        self._said = list(said)
        return made

    def note(self) -> None:
        """The whole call has been made."""
        self._after = self._now()
        self.effects = self._state.changed()
        self._changed = State(self.roots)

    def _now(self) -> tuple[States, list[torch.Tensor], list[str]]:
        return States.now(), [each.detach().clone() for each, _ in self._buffers], self._said

    def compare(self) -> None:
        """
        Raises:
            Refused: the call that was made on a part leaves something else behind.
        """
        chance, buffers, said = self._now()
        if not chance.same(self._after[0]):
            raise Refused("for a part of its batch it draws other random numbers")
        if not all(map(alike, buffers, self._after[1])):
            raise Refused("it keeps something of the batch in a buffer")
        if said != self._after[2]:
            raise Refused("it prints something of its batch")
        if self._changed.changed() and (what := self._changed.change()):
            raise Refused(f"it keeps something of the batch: {what}")

    def restore(self) -> None:
        self._state.put_back()
        for buffer, before in self._buffers:
            buffer.data.copy_(before)
        self._chance_before.restore()
