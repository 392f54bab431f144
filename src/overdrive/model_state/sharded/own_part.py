"""What this rank has of parameters and optimizers' states in parts, for a run that survives: nothing is made whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from overdrive.model_state.sharded.held import Held
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.share import exchange, whole_somewhere
from overdrive.model_state.sharded.states import ShardedStates
from overdrive.ranks.group import Group
from overdrive.seams.torch.internals import as_plain_tensors


class OwnPart:
    """See `survive.in_parts.Parts`, which it is.

    Args:
        divide: told of a model that is about to be called: at the first call in training it is divided.
    """

    def __init__(
        self, group: Callable[[], Group], kept: Kept, states: ShardedStates, divide: Callable[[nn.Module], None]
    ) -> None:
        self._group_of, self._kept, self._states, self._divide = group, kept, states, divide

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        with as_plain_tensors(), self._states.aside():
            yield

    def settle(self) -> None:
        self._kept.give_back_the_rest()

    def called(self, model: nn.Module) -> None:
        self._divide(model)
        self._kept.give_back()  # no backward pass comes that would

    def told(self, tensor: torch.Tensor) -> str:
        held = self._kept.of(tensor)
        if held is None:
            return ""
        place = f"{list(held.share.shape)} {held.share.stride} {held.share.sizes}"
        return f"in parts {place} {held.like.dtype} {held.like.device} {tensor.requires_grad}"

    def values(self, parameter: torch.Tensor) -> torch.Tensor:
        held = self._held(parameter)
        return held.share.of(parameter.data) if held.part is None else held.part

    def gradient(self, parameter: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
        held = self._held(parameter)
        return held.gradient, held.looked

    def put_gradient(self, parameter: torch.Tensor, part: torch.Tensor | None, looked: bool) -> None:
        held = self._held(parameter)
        held.gradient, held.looked = part, looked
        self._kept.settle(held)

    def make_whole(self, parameters: Sequence[torch.Tensor]) -> None:
        held = [self._held(each) for each in parameters]
        wholes = [each.parameter.data if each.part is None else None for each in held]
        given = [(whole, each.part, each.share) for whole, each in zip(wholes, held, strict=True)]
        if given:
            exchange(whole_somewhere(given, self._group_of()), self._group_of(), "the parameters of a snapshot")

    def lacks_gradient(self, parameter: torch.Tensor) -> bool:
        held = self._kept.of(parameter)
        with as_plain_tensors():
            return parameter.grad is None and (held is None or held.gradient is None)

    def zero_gradient(self, parameter: torch.Tensor) -> bool:
        held = self._kept.of(parameter)
        if held is None:
            return False
        if self.lacks_gradient(parameter):
            self.put_gradient(parameter, held.like.new_zeros(held.share.size), held.looked)
        return True

    def states_of(self, optimizer: Any) -> list[Any]:
        return self._states.told(optimizer)

    def put_states(self, optimizer: Any, told: list[Any]) -> None:
        self._states.take_back(optimizer, told)

    def _held(self, parameter: torch.Tensor) -> Held:
        held = self._kept.of(parameter)
        assert held is not None
        return held
