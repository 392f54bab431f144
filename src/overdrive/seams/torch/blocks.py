"""The blocks that a model repeats: the layers of a transformer, the stages of a ResNet."""

from __future__ import annotations

import torch
from torch import nn

from overdrive.seams.torch.modules import own_parameters

_LEAST_PARTS = 2  # modules with weights within a block; a list of single layers is no list of blocks


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Modules of one class that stand in one list of `model`, outermost ones only."""
    found: list[nn.Module] = []
    blocks = _in_lists(model)
    for module in model.modules():  # outer before inner
        if module in blocks and not any(module in other.modules() for other in found):
            found.append(module)
    return found


def _in_lists(model: nn.Module) -> set[nn.Module]:
    blocks: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
            continue
        by_class: dict[type[nn.Module], list[nn.Module]] = {}
        for child in dict.fromkeys(module.children()):
            if _parts(child) >= _LEAST_PARTS and not isinstance(child, torch.jit.ScriptModule):
                by_class.setdefault(type(child), []).append(child)
        for alike in by_class.values():
            if len(alike) > 1:
                blocks.update(alike)
    return blocks


def _parts(module: nn.Module) -> int:
    return sum(bool(own_parameters(part)) for part in module.modules())
