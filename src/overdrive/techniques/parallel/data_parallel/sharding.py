"""Which models' parameters are divided over the ranks, and when: at their first call in training that is not tried."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from overdrive.core.objective import size
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.share import is_dense
from overdrive.model_state.sharded.units import units
from overdrive.ranks.group import Group
from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.internals import is_view
from overdrive.seams.torch.tracing import compiled


class Sharding:
    """All that one run does about its models' parameters.

    Args:
        say: tells the user a sentence, on rank 0.
        rounds: see `Kept`.
    """

    def __init__(self, group: Callable[[], Group], say: Callable[[str], None], rounds: bool = False) -> None:
        self._group_of, self._say = group, say
        self._how = ", gathered for calls in bfloat16" if rounds else ""
        self.kept = Kept(group, rounds)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def made(self, optimizer: Any, models: Any) -> None:
        self._optimizers.add(optimizer)

    def around(self, model: nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, which is made with parameters in parts where they are divided."""

        def made(*args: Any, **kwargs: Any) -> Any:
            if not self._group_of().mine():  # a trial
                return call(*args, **kwargs)
            self.called(model)
            if not len(self.kept):
                return call(*args, **kwargs)
            with self.kept.calling():
                return call(*args, **kwargs)

        return made

    def called(self, model: nn.Module) -> None:
        """It is, or would be if this run were not made again."""
        if model not in self._seen and model.training and torch.is_grad_enabled():
            self._divide(model)

    def _divide(self, model: nn.Module) -> None:
        trained = {id(each) for optimizer in self._optimizers for each in parameters_of(optimizer)}
        if not any(id(each) in trained for each in model.parameters()):
            return  # its optimizer may come later
        self._seen.add(model)
        name = type(model).__name__
        if any(compiled(each) for each in model.modules()):
            self._say(f"the parameters of {name} stay whole on every rank: it is compiled")
            return
        ranks = self._group_of().size
        found = [[each for each in unit if self._fits(each, ranks)] for unit in units(model)]
        found = [unit for unit in found if unit]
        for unit in found:
            self.kept.take(unit)  # and it is given back after the first backward pass: graphs from before it are there
        whole = sum(each.nbytes for each in model.parameters())
        divided = [sum(each.nbytes for each in unit) for unit in found]
        if not divided:
            self._say(f"the parameters of {name} stay whole on every rank: none of them can be divided")
            return
        own = whole - sum(divided) + sum(divided) // ranks
        self._say(
            f"{name}: parameters and gradients are divided over {ranks} ranks, {size(whole)} → {size(own)} a rank, and "
            f"{size(max(divided))} more while they are used, in {len(divided)} units{self._how}"
        )

    def _fits(self, parameter: Any, ranks: int) -> bool:
        return (
            type(parameter) is nn.Parameter
            and (parameter.is_floating_point() or parameter.is_complex())
            and parameter.numel() >= ranks
            and is_dense(parameter)
            and not is_view(parameter)
            and parameter.untyped_storage().nbytes() == parameter.nbytes
            and self.kept.of(parameter) is None
        )
