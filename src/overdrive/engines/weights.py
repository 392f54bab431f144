"""Whether what a model's tensors hold is what it was, whoever wrote to them and in whatever way.

PyTorch's own count of writes does not see those through `.data` or `numpy()`. So the kernel is asked whether the pages
were written to, where it knows (see `changes.written_pages`); small tensors, and all where it does not, are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from overdrive.changes.array_content import Contents
from overdrive.changes.words import Words
from overdrive.model_state.tensor_places import places_of_tensor
from overdrive.seams.torch.internals import storage_id
from overdrive.seams.torch.layouts import as_it_lies


class Weights:
    """Of these tensors, as they are now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list({id(each): each for each in tensors}.values())
        # Of memory of their own, which lives as long as this.
        self._memories = [_bytes_of(each) for each in {storage_id(each): each for each in self._tensors}.values()]
        self._words = Words()
        self._without_words = []
        for each in self._tensors:
            moved = partial(_lies_elsewhere, each, _form(each))
            if places := places_of_tensor(each):
                self._words.add(moved, places)
            else:
                self._without_words.append(moved)
        self._words.seal()
        self._contents = Contents(self._memories)

    def changed(self) -> bool:
        """Whether any was written to, or has another memory, format, shape or stride. Some 0.1 µs for each."""
        moved = self._words.changed() or any(each() for each in self._without_words)
        return moved or self._contents.changed()  # whose memory is not there any more where it moved

    def digest(self) -> str:
        """sha256 of all that they hold, whatever memory it lies in."""
        digest = hashlib.sha256()
        for each in self._tensors:
            digest.update(repr((each.dtype, each.storage_offset(), each.shape, each.stride())).encode())
        for memory in self._memories:
            digest.update(memory)
        return digest.hexdigest()


def _lies_elsewhere(tensor: torch.Tensor, form: tuple[Any, ...]) -> bool:
    return _form(tensor) != form


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.size(), tensor.stride(), tensor.is_neg(), tensor.is_conj()


def _bytes_of(tensor: torch.Tensor) -> Any:
    """All of the memory that a tensor lies in, as an array of bytes that shares it as long as it does not move."""
    with torch.no_grad():
        return as_it_lies(torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()))
