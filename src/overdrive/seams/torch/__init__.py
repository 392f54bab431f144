"""PyTorch's seams: one file each. Only points that have a subscriber are patched; the rest cost nothing."""

from __future__ import annotations

from collections.abc import Callable

from overdrive.seams.hub import Seams
from overdrive.seams.torch import backward, loaders, models, optimizers, seeds
from overdrive.seams.torch.patch import Patches


def enter(hub: Seams) -> Callable[[], None]:
    """Patch what the hub's subscribers need; returns what takes every patch away again."""
    patches = Patches()
    removers: list[Callable[[], None]] = [patches.restore]
    for seam in (seeds, optimizers, models, backward, loaders):
        removers += seam.enter(hub, patches)

    def leave() -> None:
        for remove in reversed(removers):
            remove()
        removers.clear()

    return leave
