"""Whether what a model's tensors hold is what it was, whoever wrote to them and in whatever way.

PyTorch's own count of writes does not see those through `.data` or `numpy()`. So the kernel is asked whether the pages
were written to, where it knows (see `changes.written_pages`); small tensors, and all where it does not, are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from overdrive.changes.array_content import Contents
from overdrive.seams.torch.internals import storage_id


class Weights:
    """Of these tensors, as they are now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list({id(each): each for each in tensors}.values())
        # Of memory of their own, which lives as long as this.
        self._memories = [_bytes_of(each) for each in {storage_id(each): each for each in self._tensors}.values()]
        self._forms = self._forms_now()
        self._contents = Contents(self._memories)

    def changed(self) -> bool:
        """Whether any was written to, or has another memory, shape or stride. Some microseconds for each."""
        return self._forms_now() != self._forms or self._contents.changed()

    def _forms_now(self) -> list[Any]:
        """Where they lie and how, by calls that run no code of Python's."""
        return [list(map(of, self._tensors)) for of in (_PLACE, _SHAPE, _STRIDES)]

    def digest(self) -> str:
        """sha256 of all that they hold, whatever memory it lies in."""
        digest = hashlib.sha256()
        for each in self._tensors:
            digest.update(repr((each.dtype, each.storage_offset(), each.shape, each.stride())).encode())
        for memory in self._memories:
            digest.update(memory)
        return digest.hexdigest()


_PLACE, _SHAPE, _STRIDES = torch.Tensor.data_ptr, torch.Tensor.size, torch.Tensor.stride


def _bytes_of(tensor: torch.Tensor) -> Any:
    """All of the memory that a tensor lies in, as an array of bytes that shares it."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
