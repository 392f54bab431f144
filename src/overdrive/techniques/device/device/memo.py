"""Copies of CPU tensors that the program uses again and again, kept as long as nothing has been written to them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from overdrive.seams.torch.internals import version_of

_MOST_SHARED = 100_000  # storages that were given away; past that none is trusted


@dataclass(frozen=True)
class _Copy:
    original: weakref.ref[Any]
    version: int
    copy: torch.Tensor
    bytes: int


class Memo:
    """At most so many bytes of copies, the least recently used given up first."""

    def __init__(self) -> None:
        self.most = 0
        self._copies: OrderedDict[int, _Copy] = OrderedDict()
        self._bytes = 0
        self._shared: set[int] = set()  # addresses of storages that something else may write to

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        known = self._copies.get(id(tensor))
        if known is None or known.original() is not tensor or known.version != version_of(tensor):
            return None
        if tensor.untyped_storage().data_ptr() in self._shared:
            return None
        self._copies.move_to_end(id(tensor))
        return known.copy

    def put(self, tensor: torch.Tensor, copy: torch.Tensor) -> None:
        """Remember the copy; not where a write could go unseen, or a gradient has to flow back."""
        if tensor.requires_grad or tensor.is_inference() or tensor.layout is not torch.strided:
            return
        size = copy.numel() * copy.element_size()
        storage = tensor.untyped_storage()
        # Memory that is not torch's own (`torch.from_numpy`, shared with a worker) cannot be resized.
        if size > self.most or not storage.resizable() or storage.data_ptr() in self._shared:
            return
        self._drop(id(tensor))
        place = id(tensor)
        reference = weakref.ref(tensor, lambda gone: self._gone(place, gone))
        self._copies[place] = _Copy(reference, version_of(tensor), copy, size)
        self._bytes += size
        while self._bytes > self.most:
            self._drop(next(iter(self._copies)))

    def given_away(self, tensor: torch.Tensor) -> None:
        """From now on it may be written to without a trace."""
        self._shared.add(tensor.untyped_storage().data_ptr())
        if len(self._shared) > _MOST_SHARED:
            self.most = -1
            self.clear()

    def clear(self) -> None:
        self._copies.clear()
        self._bytes = 0

    def _gone(self, place: int, reference: Any) -> None:
        known = self._copies.get(place)
        if known is not None and known.original is reference:
            self._drop(place)

    def _drop(self, place: int) -> None:
        known = self._copies.pop(place, None)
        if known is not None:
            self._bytes -= known.bytes
