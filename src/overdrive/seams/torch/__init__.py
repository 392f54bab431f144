"""PyTorch's seams: one file each. Only points that have a subscriber are patched; the rest cost nothing."""

from __future__ import annotations

from collections.abc import Callable

from overdrive.seams.hub import Seams
from overdrive.seams.patch import Patches, last_first
from overdrive.seams.torch import (
    answers,
    asked,
    attributes,
    autocasts,
    backward,
    casts,
    checkpoints,
    draws,
    functions,
    late_compiler,
    loaders,
    losses,
    models,
    moves,
    norms,
    operators,
    optimizer_state,
    optimizers,
    ports,
    scalars,
    scaling,
    seeds,
    spared_steps,
    state_dicts,
    whole_calls,
    zeroing,
)
from overdrive.seams.torch.control import compute_carefully, peak_memory, refuse_chance, seed, synchronize
from overdrive.seams.torch.loss_values import LossValues as make_loss_values
from overdrive.seams.torch.short_epochs import shorten_epochs
from overdrive.seams.torch.step_recorder import make_step_recorder

__all__ = [
    "compute_carefully",
    "enter",
    "make_loss_values",
    "make_step_recorder",
    "peak_memory",
    "refuse_chance",
    "seed",
    "shorten_epochs",
    "synchronize",
]


def enter(hub: Seams) -> Callable[[], None]:
    """Patch what the hub's subscribers need; returns what takes every patch away again."""
    answers.watch(hub)
    patches = Patches()
    removers: list[Callable[[], None]] = [patches.restore, late_compiler.stand_in()]
    rooms = (seeds, optimizers, models, backward, loaders, moves, zeroing, autocasts, scaling, draws, norms, ports)
    for seam in (
        *rooms,
        operators,
        optimizer_state,
        state_dicts,
        scalars,
        functions,
        whole_calls,
        spared_steps,
        asked,
        losses,
        attributes,
        casts,
        checkpoints,
    ):
        removers += seam.enter(hub, patches)
    return last_first(removers)
