"""Divides models at their first call in training: what is tried on rank 0, and then done on all."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from overdrive.core.objective import size
from overdrive.model_state.division.results import gradients_of
from overdrive.ranks.group import Group
from overdrive.ranks.norms import norm_of_parts
from overdrive.ranks.rank import Rank
from overdrive.seams.parameters import looks_at_more, parameters_of
from overdrive.seams.points import reason_of
from overdrive.seams.torch.tracing import traced
from overdrive.techniques.parallel.tensor_parallel.cuts import Cut
from overdrive.techniques.parallel.tensor_parallel.finding import found
from overdrive.techniques.parallel.tensor_parallel.layers import divide, part_of
from overdrive.techniques.parallel.tensor_parallel.parts import Part, whole_of
from overdrive.techniques.parallel.tensor_parallel.shards import call_over, divided_by, shards
from overdrive.techniques.parallel.tensor_parallel.weights import trained_by

_NAMED = 3  # layers that a sentence names; the others are counted


class Live:
    """`Shards` of the ranks of this run."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._group.sum_(tensor, "the parts of a layer")

    def gather(self, tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
        held = [cut.held(rank, self.size) for rank in range(self.size)]
        return cut.joined(
            self._group.gather(tensor, cut.dim, held, "what a layer's parts come to"), self.size
        ).contiguous()

    def weight(self, parameter: torch.Tensor, cut: Cut) -> torch.Tensor:
        return parameter

    def open_cut(self, name: str, cut: Cut, makers: Collection[str]) -> Cut | None:
        raise AssertionError("all is decided in a run")

    def gathered(self, makers: Collection[str], why: str, segments: tuple[int, ...]) -> None:
        """What the first call did not show costs a message."""


class Dividing:
    """All that one run does about its models."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._optimizers: list[Any] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._groups: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of optimizers
        self._in_parts: weakref.WeakSet[Any] = weakref.WeakSet()  # those that train parts
        self._cuts: dict[torch.Tensor, Cut] = {}  # of parameters that are divided
        self._whole: dict[torch.Tensor, torch.Size] = {}  # and what they were
        self._live: Live | None = None
        rank.lockstep.differing.append(lambda parameter: parameter in self._cuts)

    def made(self, optimizer: Any, models: Any) -> None:
        self._optimizers.append(optimizer)
        self._look_at(optimizer)

    def _look_at(self, optimizer: Any) -> None:
        """When it was made, or was given another group of parameters."""
        self._groups[optimizer] = len(optimizer.param_groups)
        if optimizer in self._in_parts or not any(each in self._cuts for each in parameters_of(optimizer)):
            return
        if name := looks_at_more(optimizer):
            self._rank.say(
                f"{name} may look at more of a parameter than one element, and of some that it trains each rank has a "
                "part: have it train them before the model's first call in training, and the model stays whole"
            )
            raise SystemExit(1)
        self._state_in_parts(optimizer)

    def called(self, model: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for each in self._optimizers if self._cuts else ():
            if self._groups[each] != len(each.param_groups):
                self._look_at(each)
        new = model not in self._seen and model.training and torch.is_grad_enabled() and self._rank.group.mine()
        optimizers = trained_by(model, self._optimizers) if new and not traced() else []
        if optimizers:
            self._seen.add(model)
            if any(each in self._cuts for each in model.parameters()):
                self._tell_shared(model)
            else:
                self._divide(model, optimizers, call, args, kwargs)
        if not self._cuts or shards() is not self._live:  # in a trial, what a module of the model gives stays in parts
            return call(*args, **kwargs)
        try:
            return pytree.tree_map_only(Part, lambda each: whole_of(each), call(*args, **kwargs))
        finally:
            call_over()

    def asked(self, outputs: Any, call: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """What `torch.autograd.grad` gives, of results that ranks had parts of."""
        if not self._cuts or shards() is not self._live:
            return call(inputs, *args, **kwargs)
        return gradients_of(inputs, call, args, kwargs)

    def norm(self, call: Callable[..., Any], gradients: Sequence[Any], kind: float, foreach: Any) -> Any:
        """Of all gradients together, with the parts of all ranks."""
        own = {id(each.grad) for each in self._cuts if each.grad is not None}
        return norm_of_parts(call, gradients, own, kind, foreach, self._rank.group)

    # -- inside ---------------------------------------------------------------------------------

    def _tell_shared(self, model: nn.Module) -> None:
        """It is called as it is: layers of it are divided already."""
        if any(each.dim() > 1 and each.requires_grad and each not in self._cuts for each in model.parameters()):
            name = type(model).__name__
            self._rank.say(f"{name} shares layers that are divided: its others stay whole on every rank")

    def _divide(
        self, model: nn.Module, optimizers: Sequence[Any], call: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        told: Any = {}
        if self._rank.group.tells:
            try:
                told = found(model, optimizers, call, args, kwargs, self._rank.size)
            except Exception as error:  # the other ranks wait for an answer
                told = {"cuts": {}, "reasons": {"": reason_of(error)}}
        told = self._rank.group.told_by_first(told, "which layers are divided")
        name = type(model).__name__
        if not told["cuts"]:
            self._rank.say(
                f"{name} stays whole on every rank: {_said(told['reasons']) or 'it has no weights to divide'}"
            )
            return
        before = _bytes(model)
        if self._live is None:
            self._live = Live(self._rank.group)
            divided_by(self._live)  # for good: models have no more than their parts from here on
        shapes: dict[torch.Tensor, torch.Size] = {each: each.shape for each in model.parameters()}
        cuts = divide(model, {key: Cut(dim, tuple(segments)) for key, (dim, segments) in told["cuts"].items()})
        self._cuts.update(cuts)
        self._whole.update({each: shapes[each] for each in cuts})
        for each in optimizers:
            self._state_in_parts(each)
        after = _bytes(model)
        count = sum(len(self._whole[each]) > 1 for each in cuts)
        layers = "the weights of 1 layer are" if count == 1 else f"the weights of {count} layers are"
        said = f"{name}: {layers} divided over {self._rank.size} ranks, parameters {size(before)} → {size(after)}"
        whole_ones = f"; whole stay {_said(told['reasons'])}" if told["reasons"] else ""
        self._rank.say(f"{said} a rank, and gradients and optimizer state alike{whole_ones}")

    def _state_in_parts(self, optimizer: Any) -> None:
        """Its state, where it has some already, and its `state_dict`, which has the whole."""
        again = optimizer in self._in_parts
        self._in_parts.add(optimizer)
        for parameter in parameters_of(optimizer):
            state = optimizer.state.get(parameter, {})
            for name, value in state.items() if parameter in self._cuts else ():
                if isinstance(value, torch.Tensor) and value.shape == self._whole[parameter]:
                    state[name] = part_of(value, self._cuts[parameter])
        if again:
            return
        optimizer.register_state_dict_post_hook(self._gathered)
        optimizer.register_load_state_dict_pre_hook(self._taken_apart)

    def _gathered(self, optimizer: Any, told: dict[str, Any]) -> dict[str, Any]:
        live = self._live
        assert live is not None
        return self._changed(optimizer, told, lambda each: each.shape, live.gather)

    def _taken_apart(self, optimizer: Any, told: dict[str, Any]) -> dict[str, Any]:
        return self._changed(optimizer, told, lambda each: self._whole[each], part_of)

    def _changed(
        self, optimizer: Any, told: dict[str, Any], shape: Callable[[Any], Any], act: Callable[[Any, Cut], Any]
    ) -> dict[str, Any]:
        """`told` with other tensors of divided parameters: of those that have this shape."""
        state = dict(told["state"])
        for place, parameter in enumerate(parameters_of(optimizer)):
            if parameter not in self._cuts or place not in state:
                continue
            cut = self._cuts[parameter]
            state[place] = {
                name: act(held, cut) if isinstance(held, torch.Tensor) and held.shape == shape(parameter) else held
                for name, held in state[place].items()
            }
        return {**told, "state": state}


def _said(reasons: dict[str, str]) -> str:
    """By layer; layers with the same reason are told together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name.removesuffix(".weight"))
    return "; ".join(f"{_named(names)} ({why})" if names[0] else why for why, names in by_reason.items())


def _named(names: list[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _bytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())
