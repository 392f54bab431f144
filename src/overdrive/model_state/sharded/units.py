"""Which parameters are whole at the same time: those of a block that is repeated, else those of one module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from overdrive.seams.torch.modules import own_parameters


def units(model: nn.Module) -> list[list[nn.Parameter]]:
    """Each parameter once, with those that are used next to it.

    Blocks are modules beside each other whose parameters have the same shapes, in the same order.
    """
    found: list[list[nn.Parameter]] = []
    seen: set[int] = set()
    for parameters in _used_together(model):
        new = [each for each in dict.fromkeys(parameters) if id(each) not in seen]
        seen.update(map(id, new))
        if new:
            found.append(new)
    return found


def _used_together(module: nn.Module) -> Iterator[Iterator[nn.Parameter]]:
    yield iter(own_parameters(module))
    children = list(module.children())
    repeated = Counter(map(_shapes, children))
    for child in children:
        shapes = _shapes(child)
        if shapes and repeated[shapes] > 1:
            yield child.parameters()
        else:
            yield from _used_together(child)


def _shapes(module: nn.Module) -> tuple[Any, ...]:
    return tuple(each.shape for each in module.parameters())
