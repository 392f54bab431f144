"""Hooks on results of divided calls, and gradients of them that are kept: of the whole batch, and of all ways.

Other results of the call may be computed from this rank's part of one. What comes to the gathered one is not all then:
hooks stand at the part, and what comes there is gathered for them.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from overdrive.model_state.division.exchange import Gathered, Part, edge_of_part


def watch(result: torch.Tensor, hook: Callable[..., Any] | None, plain: Callable[[Any], Any]) -> Any:
    """Answer `result.register_hook(hook)`, or without a hook `result.retain_grad()`; None for a tensor that is no
    gathered result.

    Args:
        plain: what PyTorch does with such a hook, or with None.
    """
    edge = edge_of_part(result) if result.requires_grad else None
    if edge is None:
        return None
    made: Any = result.grad_fn
    watched: _Watched | None = getattr(made, "watched", None)
    if watched is None:
        watched = made.watched = _Watched(result, made, edge.output_nr)
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

    def __init__(self, result: torch.Tensor, made: Any, place: int) -> None:
        self._result, self._place = weakref.ref(result), place
        self._group, self._across, self._scale = made.group, (made.dim, made.sizes), made.scale
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
        size = self._group.size * self._scale
        whole = first = Gathered.apply(part, self._group, *self._across, 1 / size)  # type: ignore[no-untyped-call]
        for hook in [*self.hooks.values()]:
            given = hook(whole)
            whole = whole if given is None else given
        result = self._result()
        if self.retained and result is not None:
            result.grad = whole if before is None else before + whole
        if whole is first:
            return None
        altered = Part.apply(whole, self._group, *self._across, size)  # type: ignore[no-untyped-call]
        return (*gradients[: self._place], altered, *gradients[self._place + 1 :])
