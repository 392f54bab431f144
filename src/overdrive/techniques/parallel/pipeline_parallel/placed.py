"""Where the value of a tensor is, and what stands for it elsewhere."""

from __future__ import annotations

import torch
from torch import nn


class Placed:
    """Where a tensor's value is.

    Attributes:
        call: of the model, by number, in which that is so: a program may keep a tensor, and give it to another one.
        stage: which has it.
        own: whether the tensor itself has it, on this rank.
        copy: what has it here, or had it when it was sent here.
        shape: what has its shape alone.
        sent: stages that it was sent to.
    """

    __slots__ = ("call", "copy", "own", "sent", "shape", "stage")

    def __init__(self, call: int, stage: int, own: bool) -> None:
        self.call, self.stage, self.own = call, stage, own
        self.copy: torch.Tensor | None = None
        self.shape: torch.Tensor | None = None
        self.sent: set[int] = set()

    def move(self, stage: int, own: bool, copy: torch.Tensor | None) -> None:
        """It was written to there."""
        self.stage, self.own, self.copy, self.sent = stage, own, copy, set()


def without_data(tensor: torch.Tensor) -> torch.Tensor:
    """One of its shape, strides and type on the device "meta"."""
    if isinstance(tensor, nn.Parameter):  # of one that this rank has not, the memory is another one
        made = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    else:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    # A leaf with a gradient could not be written to, as what it stands for can.
    return made.requires_grad_().clone() if tensor.requires_grad and torch.is_grad_enabled() else made
