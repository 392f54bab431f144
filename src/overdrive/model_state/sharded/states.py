"""Steps of optimizers of which each rank takes its share, and keeps the state of that alone.

For the length of a step the parameters and gradients are this rank's elements; PyTorch's own code does the rest.
Between two steps who reads a parameter or the state finds it whole; the next step divides the state again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.core.flag import Flag
from overdrive.core.objective import size
from overdrive.model_state.sharded.held import Held, set_data
from overdrive.model_state.sharded.kept import Kept
from overdrive.model_state.sharded.share import Share, exchange, is_dense, whole_somewhere
from overdrive.ranks.group import Group
from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.seams.torch.internals import as_plain_tensors, version_of
from overdrive.seams.torch.optimizer_state import state_of


@dataclass
class _Narrowed:
    """A parameter in a step, and what it is otherwise."""

    parameter: Any
    share: Share
    whole: torch.Tensor | None  # None where this rank has its share alone
    gradient: torch.Tensor | None  # the same
    part: torch.Tensor  # of the gradient
    version: int  # of the gradient's part, before the step
    held: Held | None


class ShardedStates:
    """All that one run does about its optimizers.

    Args:
        say: tells the user a sentence, on rank 0.
        kept: parameters of which this rank keeps its share; None where all are whole between two steps.
    """

    def __init__(self, group: Callable[[], Group], say: Callable[[str], None], kept: Kept | None = None) -> None:
        self._group_of, self._say, self._kept = group, say, kept
        # Of those whose state is in parts now: by the parameter's id, the names of what is.
        self._divided: weakref.WeakKeyDictionary[Any, dict[int, set[str]]] = weakref.WeakKeyDictionary()
        self._told: set[str] = set()
        self._stepping: Any = None
        self._aside = Flag()

    @property
    def in_parts(self) -> bool:
        return any(self._divided.values())

    def asked(self, optimizer: Any) -> None:
        """Somebody reads its state: it is made whole, if it is not its own step that reads."""
        if self._aside or optimizer is self._stepping or not self._divided.get(optimizer):
            return
        if not self._group_of().mine():
            self._group_of().end(
                "stopped: an optimizer's state, which is divided over ranks, is read in another thread"
            )
        in_parts, self._divided[optimizer] = self._divided[optimizer], {}
        for parameter, state in state_of(optimizer).items():
            names = in_parts.get(id(parameter), ())
            share = self._share(parameter) if names else None
            for name in sorted(names) if share is not None else ():
                if isinstance(state.get(name), torch.Tensor) and share is not None:
                    state[name] = share.whole(state[name], self._group_of(), "an optimizer's state")

    def aside(self) -> Flag:
        """Who reads a state within it finds this rank's part."""
        return self._aside

    def told(self, optimizer: Any) -> list[Any]:
        """What is in parts of its state: the place of each parameter, and names; as JSON."""
        in_parts = self._divided.get(optimizer, {})
        places = [(place, in_parts.get(id(each))) for place, each in enumerate(parameters_of(optimizer))]
        return [[place, sorted(names)] for place, names in places if names]

    def take_back(self, optimizer: Any, told: list[Any]) -> None:
        """Its state is in such parts."""
        trained = parameters_of(optimizer)
        self._divided[optimizer] = {id(trained[place]): set(names) for place, names in told}

    def stepped(self, optimizer: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._group_of().mine() or self._refused(optimizer):
            return call(*args, **kwargs)
        narrowed: list[_Narrowed] = []
        closure = args[0] if args else kwargs.get("closure")

        def begin() -> None:
            narrowed.extend(self._narrow(optimizer))
            self._stepping = optimizer

        def evaluated() -> Any:
            """It computes the gradients, and is to see the parameters whole."""
            loss = closure()  # type: ignore[misc]
            begin()
            return loss

        try:
            if closure is None:
                begin()
                return call(*args, **kwargs)
            return call(evaluated, *args[1:]) if args else call(**{**kwargs, "closure": evaluated})
        finally:
            self._stepping = None
            self._note(optimizer, narrowed)
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
        if self._kept is not None and (held := self._kept.of(parameter)) is not None:
            return held.share
        group = self._group_of()
        if parameter.numel() < group.size or not is_dense(parameter):
            return None
        return Share(parameter, group.rank, group.size)

    def _narrow(self, optimizer: Any) -> list[_Narrowed]:
        """Empty where the step is to be made whole on every rank."""
        kept, states, trained = self._kept, state_of(optimizer), parameters_of(optimizer)
        if kept is not None:
            kept.give_back_the_rest()
        with torch.no_grad(), as_plain_tensors():
            if any(each.grad is not None and each.grad.layout is not torch.strided for each in trained):
                self.asked(optimizer)  # the gradient's rows say what is stepped
                return []
            in_parts = self._divided.setdefault(optimizer, {})
            found = [self._narrowed(each, states.get(each, {}), in_parts.get(id(each), set())) for each in trained]
        if kept is not None:
            kept.in_step = True
        return [each for each in found if each is not None]

    def _narrowed(self, parameter: Any, state: dict[str, Any], in_parts: set[str]) -> _Narrowed | None:
        share, gradient = self._share(parameter), parameter.grad
        held = self._kept.of(parameter) if self._kept is not None else None
        own = held.gradient if held is not None else None
        if share is None or (gradient is None and own is None):
            return None
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == share.shape and name not in in_parts:
                state[name] = share.of(share.laid(value)).clone()
        if own is None:
            own = share.of(share.laid(gradient.detach()))
        if held is not None:
            held.take_back_digits()
        part = held.part if held is not None else None
        whole = parameter.data if part is None else None
        _set(parameter, part if whole is None else share.of(whole), own)
        return _Narrowed(parameter, share, whole, gradient, own, version_of(own), held)

    def _widen(self, narrowed: list[_Narrowed]) -> None:
        if self._kept is not None:
            self._kept.in_step = False
        with torch.no_grad(), as_plain_tensors():
            for each in narrowed:
                if each.whole is not None:
                    _set(each.parameter, each.whole, each.gradient)
                elif each.held is not None:
                    each.parameter.grad = None
                    each.held.hide()
                    each.parameter.grad = each.gradient
                if self._kept is not None and each.held is not None:
                    self._kept.settle(each.held)
            exchange(self._to_be_whole(narrowed), self._group_of(), "the parameters after a step")
            for each in narrowed:
                # A scaler's scale, which the step has taken out of it.
                if each.gradient is not None and version_of(each.part) != each.version:
                    each.gradient.copy_(each.share.whole(each.part, self._group_of(), "a gradient after a step"))

    def _to_be_whole(self, narrowed: list[_Narrowed]) -> list[tuple[torch.Tensor, Share]]:
        if self._kept is None or not narrowed:
            return [(each.whole, each.share) for each in narrowed if each.whole is not None]
        parts = [each.held.part if each.held is not None else None for each in narrowed]
        held = [(each.whole, part, each.share) for each, part in zip(narrowed, parts, strict=True)]
        return whole_somewhere(held, self._group_of())

    def _note(self, optimizer: Any, narrowed: Sequence[_Narrowed]) -> None:
        """What is in parts of its state: by shapes, which right after a step tell it."""
        states, in_parts = state_of(optimizer), self._divided.setdefault(optimizer, {})
        for each in narrowed:
            in_parts[id(each.parameter)] = {
                name
                for name, value in states.get(each.parameter, {}).items()
                if isinstance(value, torch.Tensor) and value.shape == (each.share.size,)
            }

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


def _set(parameter: Any, data: Any, gradient: Any) -> None:
    parameter.grad = None  # it has to be of the parameter's shape, at each moment
    set_data(parameter, data)
    parameter.grad = gradient
