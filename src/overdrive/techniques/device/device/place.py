"""A device that tensors can be sent to and brought back from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Protocol

import torch


class Place(Protocol):
    """What the moving needs to know of a device; tests have one without hardware."""

    has: Callable[[torch.Tensor], bool]  # whether the tensor lives there; asked for every tensor of every call

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy there, recorded by autograd where that records."""

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the CPU's memory, likewise."""

    def as_on_cpu(self, text: str) -> str:
        """A tensor's text without the name of the device, as it is for one on the CPU."""

    def made_there(self) -> AbstractContextManager[Any]:
        """Within it torch's factories make their tensors there."""


class Cuda:
    """The current GPU."""

    def __init__(self) -> None:
        self.has: Callable[[torch.Tensor], bool] = attrgetter("is_cuda")
        self._device = torch.device("cuda", torch.cuda.current_device())

    def send(self, tensor: torch.Tensor) -> torch.Tensor:
        # By the seam *tensor moved*, so that copies that were made ahead are taken. Never `non_blocking`: the program
        # may write to its batch in the next moment, which it knows to be on the CPU.
        return tensor.to(self._device)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def as_on_cpu(self, text: str) -> str:
        return text.replace(f", device='{self._device}'", "")

    def made_there(self) -> AbstractContextManager[Any]:
        return self._device
