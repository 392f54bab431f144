"""Where a backward pass leads while the run is made again: to what no optimizer trains, or to functions of the program.

Zeros for the optimizers' parameters are given without it (see `gradients`). An image that is attacked, or features that
are looked at, have gradients, too, and what calls them has seen these: there it is made, over the zeros that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.graphs import nodes_behind


class WaysBack:
    def __init__(self) -> None:
        self._watched = False

    def watched(self, tensor: Any, hook: Any, plain: Callable[[Any], Any]) -> None:
        """A subscriber to `gradient_watched`: of what was computed, of which no graph tells it."""
        self._watched = self._watched or not tensor.is_leaf

    def are_followed(self, tensors: Any, optimizers: Iterable[Any]) -> bool:
        """Whether a backward pass from there is to be made."""
        if self._watched:
            return True
        trained: set[int] | None = None
        for leaf in _leaves(tensors):
            if trained is None:
                trained = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
            if id(leaf) not in trained:
                return True
        return False


def _leaves(tensors: Any) -> Iterator[torch.Tensor]:
    """In the graphs of these; those without elements are of stand-ins for calls."""
    alone = isinstance(tensors, (torch.Tensor, GradientEdge))
    ends = [each for each in ((tensors,) if alone else tensors) if isinstance(each, GradientEdge) or each.requires_grad]
    edges = (each if isinstance(each, GradientEdge) else get_gradient_edge(each) for each in ends)
    for node in nodes_behind(each.node for each in edges):
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and leaf.numel():
            yield leaf
