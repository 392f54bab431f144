"""An engine that needs no library: PyTorch carries out the exported graph, with the weights of when it was built."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

TITLE = "the graph"


class Graphs:
    """A `Runtime`. `spoilt`: what it does to each result, as a library with a defect would.

    Attributes:
        built: the shapes that engines were built for.
        examples: what the last one was built from.
        asked: how often one was.
    """

    title = TITLE
    narrow = False

    def __init__(self, spoilt: Callable[[Any], Any] = lambda array: array, calibrating: int = 0) -> None:
        self.calibrating = calibrating
        self.built: list[list[tuple[int, ...]]] = []
        self.examples: Sequence[Sequence[Any]] = ()
        self.asked = 0
        self._spoilt = spoilt

    def missing(self) -> str | None:
        return None

    def build(self, graph: Any, examples: Sequence[Sequence[Any]], threads: int) -> Any:
        self.examples = examples
        self.built.append([each.shape for each in examples[-1]])
        module = copy.deepcopy(graph).module()

        def answer(given: Sequence[Any]) -> list[Any]:
            self.asked += 1
            with torch.no_grad():
                made = module.forward(*_arranged(graph, [torch.from_numpy(each.copy()) for each in given]))
            leaves = [each for each in torch.utils._pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
            return [self._spoilt(each.numpy().copy()) for each in leaves]

        return answer


def _arranged(graph: Any, tensors: list[torch.Tensor]) -> Any:
    """Positional arguments of the exported module; these tests give no others."""
    leaves = iter(tensors)
    spec = graph.call_spec.in_spec
    places = [next(leaves, None) for _ in range(spec.num_leaves)]
    args, kwargs = torch.utils._pytree.tree_unflatten(places, spec)
    assert not kwargs
    return args
