"""Gradients of results of which a rank had a part in its call: those that are asked for, kept, or seen by hooks.

Other results of the call may be computed from this rank's part of one. What comes to the gathered one is not all then:
hooks stand at the part, and what comes there is gathered for them.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.autograd.graph import GradientEdge
from torch.utils.hooks import RemovableHandle


class Crossing(Protocol):
    """How a result was gathered: its function in the graph has this as `crossing`."""

    def whole(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of the gathered result, of what has come to this rank's part of it."""

    def part(self, gradient: torch.Tensor) -> torch.Tensor:
        """The other way."""


def _edge_of_part(result: Any) -> GradientEdge | None:
    """Where in the graph this rank's part of a gathered result is; None for any other tensor."""
    made = result.grad_fn if isinstance(result, torch.Tensor) and result.requires_grad else None
    if not hasattr(made, "crossing"):
        return None
    node, place = made.next_functions[0]  # type: ignore[union-attr]
    return None if node is None or hasattr(node, "variable") else GradientEdge(node, place)


def gradients_of(
    inputs: Any, call: Callable[..., Any], args: Any, kwargs: Any, of_others: Callable[[Any], Any] = lambda each: each
) -> Any:
    """What `torch.autograd.grad` gives with respect to `inputs`, of all ranks.

    Args:
        call: asks it, with these further arguments.
        of_others: what all ranks have of the gradient of what is no gathered result.
    """
    named = isinstance(inputs, Mapping)
    alone = isinstance(inputs, (torch.Tensor, GradientEdge))
    asked = [*inputs.values()] if named else [inputs] if alone else [*inputs]
    # Where it is asked for many gradients at once, or for zeros, it is asked for those of tensors.
    plain = kwargs.get("is_grads_batched") or kwargs.get("materialize_grads")
    edges = [None if plain else _edge_of_part(each) for each in asked]
    found = call([edge or each for edge, each in zip(edges, asked, strict=True)], *args, **kwargs)
    made = tuple(
        each
        if each is None or each.layout is not torch.strided
        else of_others(each)
        if edge is None
        else tensor.grad_fn.crossing.whole(each)
        for tensor, edge, each in zip(asked, edges, found, strict=True)
    )
    return dict(zip(inputs, made, strict=True)) if named else made


def watch(result: torch.Tensor, hook: Callable[..., Any] | None, plain: Callable[[Any], Any]) -> Any:
    """Answer `result.register_hook(hook)`, or without a hook `result.retain_grad()`; None for a tensor that is no
    gathered result.

    Args:
        plain: what PyTorch does with such a hook, or with None.
    """
    edge = _edge_of_part(result)
    if edge is None:
        return None
    made: Any = result.grad_fn
    watched: _Watched | None = getattr(made, "watched", None)
    if watched is None:
        watched = made.watched = _Watched(result, made.crossing, edge.output_nr)
        edge.node.register_prehook(watched.came)
        plain(watched.came_directly)
    if hook is None:
        plain(None)
        watched.retained = True
        return True
    handle = RemovableHandle(watched.hooks)
    watched.hooks[handle.id] = hook
    return handle


class _Watched:
    """Of one result. The graph holds this, so that it holds neither the result nor what has made it."""

    def __init__(self, result: torch.Tensor, crossing: Crossing, place: int) -> None:
        self._result, self._crossing, self._place = weakref.ref(result), crossing, place
        self._direct, self._before = False, None  # what has come to the gathered one, and what was kept before that
        self.hooks: OrderedDict[int, Callable[..., Any]] = OrderedDict()  # a handle takes no other
        self.retained = False

    def came_directly(self, _: torch.Tensor) -> None:
        self._direct, self._before = True, self._kept()

    def _kept(self) -> Any:
        result = self._result()
        return result.grad if self.retained and result is not None else None

    def came(self, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        before = self._before if self._direct else self._kept()
        self._direct, self._before = False, None
        part = gradients[self._place]
        if part is None or not (self.hooks or self.retained):
            return None
        whole = first = self._crossing.whole(part)
        for hook in [*self.hooks.values()]:
            given = hook(whole)
            whole = whole if given is None else given
        result = self._result()
        if self.retained and result is not None:
            result.grad = whole if before is None else before + whole
        if whole is first:
            return None
        return (*gradients[: self._place], self._crossing.part(whole), *gradients[self._place + 1 :])
