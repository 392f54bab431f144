"""Parameters that are moved at random, for what follows to be held against what it is without."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def disturb(parameters: Iterable[torch.Tensor], share: float, seed: int) -> None:
    """By this share of what they are."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in parameters:
            if each.is_floating_point():
                each.mul_(1 + share * torch.randn(each.shape, generator=chance).to(each))
