"""Counts the bytes of all tensors that are alive, by what they are, from shapes and types alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from overdrive.seams.torch.internals import storage_id

PARTS = ("parameters", "gradients", "optimizer", "working")


class LiveMemory:
    """Storages on one kind of device, each counted once, from when an operation makes it until it is freed.

    "working" is all that belongs to no parameter, gradient or optimizer: batches, activations, what an operation
    needs for a moment. What an operation allocates and frees inside itself is not seen.

    Attributes:
        in_step: an optimizer's step is under way.
        peaks: what was alive at most, outside of optimizers' steps and within them.
    """

    def __init__(self, device: str) -> None:
        self.now = dict.fromkeys(PARTS, 0)
        self.in_step = False
        self.peaks: dict[bool, dict[str, int]] = {False: dict(self.now), True: dict(self.now)}
        self._most = {False: 0, True: 0}
        self.device = device
        self._alive: dict[int, tuple[Any, str, int]] = {}  # by storage: a weak reference, what it is, bytes

    def know(self, tensor: Any, part: str) -> None:
        """This tensor's memory is of that kind, whenever it was made."""
        storage = self._storage(tensor)
        if storage is None:
            return
        key = storage_id(tensor)
        known = self._alive.get(key)
        if known is None or known[0]() is not storage:
            self._alive[key] = (weakref.ref(storage, self._freed(key)), part, storage.nbytes())
            self.now[part] += storage.nbytes()
        elif known[1] != part:
            self.now[known[1]] -= known[2]
            self.now[part] += known[2]
            self._alive[key] = (known[0], part, known[2])

    def made(self, given: Iterable[Any], results: Iterable[Any]) -> None:
        """An operation is done: its results that are no views of what it was given are new, unless known."""
        mine = {storage_id(each) for each in given if self._storage(each) is not None}
        for each in results:
            storage = self._storage(each)
            if storage is None or storage_id(each) in mine:
                continue
            known = self._alive.get(storage_id(each))
            if known is None or known[0]() is not storage:
                self.know(each, "working")
        total = sum(self.now.values())
        if total > self._most[self.in_step]:
            self._most[self.in_step], self.peaks[self.in_step] = total, dict(self.now)

    def _storage(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.device:
            return None
        try:
            storage = tensor.untyped_storage()
            return storage if storage.nbytes() else None
        except (RuntimeError, NotImplementedError):  # sparse, fake or wrapped tensors have none
            return None

    def _freed(self, key: int) -> Callable[[Any], None]:
        def freed(reference: Any) -> None:
            known = self._alive.get(key)
            if known is not None and known[0] is reference:
                del self._alive[key]
                self.now[known[1]] -= known[2]

        return freed
