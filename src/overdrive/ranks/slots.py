"""Slots of fixed size, one a rank, in which all tell each other something at the same time."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from overdrive.seams.torch.internals import gather

_SLOT = 2048  # bytes of a message: statistics of 64 channels and small results fit; 64 bytes take as long to exchange


class Slots(Protocol):
    """Attributes: `size`: bytes of each."""

    size: int

    @property
    def own(self) -> memoryview:
        """What the next exchange tells of this rank; it may be written to until then."""

    def exchange(self) -> None:
        """Wait until all ranks have come here as often.

        Raises:
            RuntimeError: a rank is gone.
        """

    def of(self, rank: int) -> memoryview:
        """What that rank told in the last exchange; there until this one begins the next."""


class MessageSlots:
    """Slots as messages of a process group, which is there for them alone. Some 0.2 ms an exchange, by gloo."""

    size = _SLOT

    def __init__(self, group: Any, ranks: int) -> None:
        self._group = group
        self._own, self._all = memoryview(bytearray(_SLOT)), memoryview(bytearray(ranks * _SLOT))
        self._sent = torch.frombuffer(self._own, dtype=torch.uint8)
        self._received = torch.frombuffer(self._all, dtype=torch.uint8)

    @property
    def own(self) -> memoryview:
        return self._own

    def exchange(self) -> None:
        gather(self._group, self._received, self._sent).wait()

    def of(self, rank: int) -> memoryview:
        return self._all[rank * _SLOT : (rank + 1) * _SLOT]
