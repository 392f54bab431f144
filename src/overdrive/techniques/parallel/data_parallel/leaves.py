"""What is trained in a call: the tensors in which the graph behind its results ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from overdrive.model_state.division.chance import Deviation
from overdrive.seams.torch.graphs import nodes_behind


def behind(results: Sequence[Any], given: Sequence[torch.Tensor], parameters: Iterable[torch.Tensor]) -> list[Any]:
    """Those that are no `parameters`.

    Args:
        given: the call's arguments, beyond which nobody looks.

    Raises:
        Deviation: the graph goes on to what the program computed before the call, by another way than an argument.
    """
    known = {id(each) for each in parameters}
    ends = {each.grad_fn for each in given if each.grad_fn is not None}
    made = [each.grad_fn for each in results if isinstance(each, torch.Tensor) and each.grad_fn is not None]
    found = {}
    for node in nodes_behind(made, ends):
        if hasattr(node, "variable"):
            if id(node.variable) not in known:
                found[id(node.variable)] = node.variable
        elif node.name() == "GatheredBackward":
            raise Deviation("it uses what another model's call has made, by another way than an argument")
    return list(found.values())
