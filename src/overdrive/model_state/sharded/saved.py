"""What operations keep for their backward pass: of parameters not the values, but where to find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from overdrive.model_state.sharded.held import Held
from overdrive.seams.torch.internals import (
    as_plain_tensors,
    keeps_saved_tensors_elsewhere,
    storage_id,
    version_of,
)

_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
    "{} is at version {}; expected version {} instead"
)


class Saved:
    """Args: `gather`: makes parameters whole, with fewer digits if that is said of them."""

    def __init__(self, gather: Callable[[Iterable[Held], bool], None]) -> None:
        self._gather = gather
        self._by_memory: dict[int, Held] = {}

    def whole(self, held: Held) -> None:
        """It is in memory, from here on."""
        self._by_memory[storage_id(held.parameter)] = held

    def gone(self, held: Held) -> None:
        self._by_memory.pop(storage_id(held.parameter), None)

    def hooks(self) -> AbstractContextManager[Any]:
        """None where others are in force: checkpoints count what is saved, and what they keep holds the memory."""
        if not torch.is_grad_enabled() or keeps_saved_tensors_elsewhere():
            return nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        with as_plain_tensors():
            key = storage_id(tensor)
            held = self._by_memory.get(key)
            parameter = held.parameter if held is not None else None
            if held is None or parameter is None or tensor.dtype != parameter.dtype or storage_id(parameter) != key:
                return tensor, version_of(tensor)
            # Whether its unit is rounded, which all ranks find alike: one on which somebody holds its memory has not
            # rounded it.
            how = held.unit.is_rounded
            return held, how, version_of(parameter), tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> Any:
        """
        Raises:
            RuntimeError: it was written to in between; where there are hooks, PyTorch itself does not look.
        """
        with as_plain_tensors():
            if isinstance(packed[0], torch.Tensor):
                tensor, version = packed
                now, shape = version_of(tensor), tensor.shape
            else:
                held, rounded, version, size, stride, offset = packed
                self._gather([held], rounded)
                now, shape = version_of(held.parameter), held.share.shape
                tensor = held.parameter.data.as_strided(size, stride, offset)
            if now != version:
                raise RuntimeError(_WRITTEN.format([*shape], now, version))
            return tensor
