"""Whether what a model's tensors hold is what it was, whoever wrote to them and in whatever way.

PyTorch's own count of writes does not see those through `.data` or `numpy()`. So the kernel is asked whether the pages
were written to, where it knows (see `datacache.written_pages`); small tensors, and all where it does not, are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from overdrive.changes.array_content import ArrayContent
from overdrive.seams.torch.internals import storage_id


class Weights:
    """Of these tensors, as they are now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list({id(each): each for each in tensors}.values())
        self._forms = [_form(each) for each in self._tensors]
        self._memories = [_bytes_of(each) for each in {storage_id(each): each for each in self._tensors}.values()]
        self._contents = [ArrayContent(each) for each in self._memories]

    def changed(self) -> bool:
        """Whether any was written to, or has another memory, shape or stride. Some microseconds for each."""
        if any(_form(each) != form for each, form in zip(self._tensors, self._forms, strict=True)):
            return True
        return any(each.changed() for each in self._contents)

    def digest(self) -> str:
        """sha256 of all that they hold, whatever memory it lies in."""
        digest = hashlib.sha256()
        for tensor, form in zip(self._tensors, self._forms, strict=True):
            digest.update(repr((tensor.dtype, *form[1:])).encode())
        for memory in self._memories:
            digest.update(memory)
        return digest.hexdigest()


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _bytes_of(tensor: torch.Tensor) -> Any:
    """All of the memory that a tensor lies in, as an array of bytes that shares it."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
