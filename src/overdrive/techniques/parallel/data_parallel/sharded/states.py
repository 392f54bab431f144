"""Steps of optimizers of which each rank takes its share, and keeps the state of that alone.

For the length of a step the parameters and gradients are this rank's elements; PyTorch's own code does the rest.
Between two steps the parameters are whole again. Who reads the state then finds it whole; the next step divides it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.core.objective import size
from overdrive.ranks.group import Group
from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.seams.torch.internals import version_of
from overdrive.seams.torch.optimizer_state import state_of
from overdrive.techniques.parallel.data_parallel.sharded.share import Share, exchange, is_dense


@dataclass
class _Narrowed:
    """A parameter in a step, and what it is otherwise."""

    parameter: torch.Tensor
    share: Share
    whole: torch.Tensor
    gradient: torch.Tensor
    part: torch.Tensor  # of the gradient
    version: int  # of the gradient's part, before the step


class ShardedStates:
    """All that one run does about its optimizers. `say`: tells the user a sentence, on rank 0."""

    def __init__(self, group: Callable[[], Group], say: Callable[[str], None]) -> None:
        self._group_of, self._say = group, say
        self._divided: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # whether it is in parts now
        self._told: set[str] = set()
        self._stepping: Any = None

    @property
    def in_parts(self) -> bool:
        return any(self._divided.values())

    def asked(self, optimizer: Any) -> None:
        """Somebody reads its state: it is made whole, if it is not its own step that reads."""
        if optimizer is self._stepping or not self._divided.get(optimizer):
            return
        if self._group_of().mine():
            self._divided[optimizer] = False
            for parameter, held in state_of(optimizer).items():
                share = self._share(parameter) if isinstance(parameter, torch.Tensor) else None
                if share is not None:
                    self._gather(parameter, share, held)

    def stepped(self, optimizer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._group_of().mine() or self._refused(optimizer):
            return call(*args, **kwargs)
        narrowed: list[_Narrowed] = []
        closure = args[0] if args else kwargs.get("closure")

        def begin() -> None:
            self._stepping = optimizer
            narrowed.extend(self._narrow(optimizer))

        def evaluated() -> Any:
            """It computes the gradients, and is to see the parameters whole."""
            loss = closure()
            begin()
            return loss

        try:
            if closure is None:
                begin()
                return call(*args, **kwargs)
            return call(evaluated, *args[1:]) if args else call(**{**kwargs, "closure": evaluated})
        finally:
            self._stepping = None
            self._widen(narrowed)
            self._tell(optimizer)

    # -- inside ---------------------------------------------------------------------------------

    def _refused(self, optimizer: Any) -> bool:
        why = looks_at_more(optimizer)
        reason = f"it may look at more of a parameter than one element ({why})" if why else ""
        if any(group.get("differentiable") for group in optimizer.param_groups):
            reason = "its steps are differentiated"
        if reason and reason not in self._told:
            self._told.add(reason)
            self._say(f"the state of {type(optimizer).__name__} is whole on every rank: {reason}")
        return bool(reason)

    def _share(self, parameter: torch.Tensor) -> Share | None:
        group = self._group_of()
        if parameter.numel() < group.size or not is_dense(parameter):
            return None
        return Share(parameter.numel(), group.rank, group.size)

    def _narrow(self, optimizer: Any) -> list[_Narrowed]:
        found, states = [], state_of(optimizer)
        with torch.no_grad():
            for parameter in parameters_of(optimizer):
                share, gradient = self._share(parameter), parameter.grad
                if share is None or gradient is None:
                    continue
                held = states.get(parameter, {})
                if gradient.layout is not torch.strided:  # its rows say what is stepped: with the whole state
                    self._gather(parameter, share, held)
                    continue
                self._divided[optimizer] = True
                for name, value in held.items():
                    if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                        held[name] = share.of(_as_it_lies(value, parameter)).clone()
                whole, part = parameter.data, share.of(_as_it_lies(gradient.detach(), parameter))
                _set(parameter, share.of(whole), part)
                found.append(_Narrowed(parameter, share, whole, gradient, part, version_of(part)))
        return found

    def _widen(self, narrowed: list[_Narrowed]) -> None:
        with torch.no_grad():
            for each in narrowed:
                _set(each.parameter, each.whole, each.gradient)
            exchange([(each.whole, each.share) for each in narrowed], self._group_of(), "the parameters after a step")
            for each in narrowed:
                if version_of(each.part) != each.version:  # the step takes a scaler's scale from it
                    changed = torch.empty_like(each.whole, dtype=each.gradient.dtype)
                    each.share.of(changed).copy_(each.part)
                    exchange([(changed, each.share)], self._group_of(), "a gradient after a step")
                    each.gradient.copy_(changed)

    def _gather(self, parameter: torch.Tensor, share: Share, held: dict[str, Any]) -> None:
        """What is in parts of this parameter's state, whole."""
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and value.shape == (share.size,) != parameter.shape:
                whole = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                share.of(whole).copy_(value)
                exchange([(whole, share)], self._group_of(), "an optimizer's state")
                held[name] = whole

    def _tell(self, optimizer: Any) -> None:
        """Once of each kind, after the first step: what it takes on a rank."""
        kind = type(optimizer).__name__
        if kind in self._told or not self._divided.get(optimizer):
            return
        self._told.add(kind)
        own = whole = 0
        for parameter, held in state_of(optimizer).items():
            for value in held.values() if isinstance(held, dict) else ():
                if isinstance(value, torch.Tensor):
                    own += value.nbytes
                    whole += parameter.numel() * value.element_size() if value.dim() else value.nbytes
        ranks = self._group_of().size
        self._say(f"the state of {kind} is divided over {ranks} ranks, {size(whole)} → {size(own)} a rank")


def _set(parameter: torch.Tensor, data: torch.Tensor, gradient: torch.Tensor) -> None:
    parameter.grad = None  # it has to be of the parameter's shape, at each moment
    parameter.data = data
    parameter.grad = gradient


def _as_it_lies(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The same numbers, in memory in the order of the parameter's."""
    if tensor.stride() == parameter.stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
