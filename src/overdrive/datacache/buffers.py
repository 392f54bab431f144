"""Memory for batches: what the program has released is filled again.

Fresh memory of a large batch comes from the kernel page by page, and goes back to it. To gather 64 images of 224 × 224
(38 MB) took 25 ms of a core with fresh memory, and 2.9 ms with the same again. With CIFAR's (0.8 MB) there was no
difference: glibc keeps pieces of up to 32 MB once some have been given back.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Smaller pieces come from a heap that keeps them.
_SMALLEST = 128 << 10
# A loop holds one batch while the next is made; a program that reads ahead holds some more.
_MOST = 4
_MOST_SIZES = 4
# A program that keeps its batches gets fresh memory without further ado.
_MOST_IN_VAIN = 16


class Buffers:
    """
    Args:
        pinned: batches go to a GPU from memory that is pinned, which torch's own allocator hands out again, once the
            copies from it are done.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._pinned = pinned
        self._slots: dict[int, deque[_Slot]] = {}  # by size
        self._in_vain = 0

    def take(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An empty tensor, as by `torch.empty`."""
        import torch

        size = prod(sizes) * dtype.itemsize
        if self._pinned or size < _SMALLEST or self._in_vain >= _MOST_IN_VAIN:
            return torch.empty(sizes, dtype=dtype, pin_memory=self._pinned)
        slots = self._slots.get(size)
        if slots is None:
            if len(self._slots) >= _MOST_SIZES:
                return torch.empty(sizes, dtype=dtype)
            slots = self._slots[size] = deque()
        for _ in range(len(slots)):
            try:
                slot = slots.popleft()  # in nobody else's hands until it is back: other threads may take, too
            except IndexError:
                break
            tensor = slot.tensor(sizes, dtype) if slot.free() else None
            if slot.sound:
                slots.append(slot)
            if tensor is not None:
                self._in_vain = 0
                return tensor
        slot = _Slot(size)
        tensor = slot.tensor(sizes, dtype)
        if slot.sound and len(slots) < _MOST:
            slots.append(slot)
        elif slot.sound:
            self._in_vain += 1
            if self._in_vain >= _MOST_IN_VAIN:
                self._slots.clear()
        return tensor


class _Slot:
    """A piece of memory. Free when its storage has no other owner: neither a tensor or view or gradient's graph (they
    count), nor a Python object that stands for it; and when it is still the same memory, which a batch that was resized
    or put into shared memory has left."""

    def __init__(self, size: int) -> None:
        import torch

        self._storage: Any = torch.empty(size, dtype=torch.uint8).untyped_storage()
        self._place = self._storage.data_ptr()
        self._size = size
        self._owners = _owners(self._storage)
        self.sound = self._owners is not None

    def free(self) -> bool:
        if not self.sound or _owners(self._storage) != self._owners:
            return False
        self.sound = self._storage.data_ptr() == self._place and self._storage.nbytes() == self._size
        return self.sound

    def tensor(self, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new one, which covers all of it."""
        import torch

        strides = [prod(sizes[dimension + 1 :]) for dimension in range(len(sizes))]
        tensor: torch.Tensor = torch.empty(0, dtype=dtype).set_(self._storage, 0, sizes, strides)
        return tensor


def _owners(storage: Any) -> tuple[int, int] | None:
    """How many there are, to be compared; None where torch does not tell."""
    from overdrive.seams.torch.internals import storage_owners

    count = storage_owners(storage)
    return None if count is None else (count, sys.getrefcount(storage))
