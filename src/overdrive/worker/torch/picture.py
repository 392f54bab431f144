"""What a training step came to, small enough to be told through a pipe: in bits, or in numbers."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from overdrive.seams.parameters import parameters_of
from overdrive.seams.torch.layouts import as_array, as_bytes, in_reals, is_of_fractions, is_plain, strided_parts
from overdrive.seams.torch.optimizers import models_of
from overdrive.worker.digests import spacing
from overdrive.worker.torch.disturbing import disturb

Values: TypeAlias = np.ndarray[Any, Any]
_MOST_OPTIMIZERS = 8
_MOST_ELEMENTS = 1 << 10
_WHOLE = 1 << 16  # bytes that are hashed one by one; of larger tensors a sum of all, and elements from all over them


class Subject:
    """What there is to look at: the optimizers that the program makes, and their models."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._looked = False  # for the models of all that are there
        self._before: dict[str, Values] = {}

    def made(self, optimizer: Any, models: Any) -> None:
        self._optimizers = [*self._optimizers, weakref.ref(optimizer)][-_MOST_OPTIMIZERS:]
        self._looked = False

    def look(self) -> None:
        """Find the models of the optimizers that are there, among all live objects: in no fork, whose pages it would
        have copied, and not at each optimizer, of which a program may make thousands."""
        if not self._looked:
            self._looked = True
            self._models = [weakref.ref(each) for each in models_of(*_alive(self._optimizers))]

    def note(self) -> None:
        """A step begins: what is there now."""
        self._before = {name: _elements(parameter) for name, parameter in self._trained()}

    def disturb(self, share: float, seed: int) -> None:
        """All parameters, at random."""
        disturb((parameter for _, parameter in self._trained()), share, seed)

    def values(self) -> dict[str, Values]:
        """Elements of each gradient, update since `note`, and buffer, by its name in words."""
        found: dict[str, Values] = {}
        for name, parameter in self._trained():
            if parameter.grad is not None:
                found[f"the gradient of {name}"] = _elements(parameter.grad)
            if name in self._before and self._before[name].size:
                found[f"the update of {name}"] = _elements(parameter) - self._before[name]
        for model in _alive(self._models):
            for name, buffer in model.named_buffers():
                found[f"the buffer of {name}"] = _elements(buffer)
        return {name: values.astype(np.float32) for name, values in found.items() if values.size}

    def bits(self) -> dict[str, str]:
        """A hash of each thing that a step changes, by its name in words."""
        return {name: _hash(tensor) for name, tensor in self._tensors()}

    def _trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each parameter once; by its name in its model, or the latest of two with that name by its place."""
        names: dict[int, str] = {}
        for model in _alive(self._models):
            for name, tensor in model.named_parameters():
                names.setdefault(id(tensor), name)
        told: set[str] = set()
        known: set[int] = set()
        for number, optimizer in enumerate(_alive(self._optimizers)):
            for place, parameter in enumerate(parameters_of(optimizer)):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    own = f"parameter {place} of optimizer {number}"
                    name = names.get(id(parameter), own)
                    name = own if name in told else name
                    told.add(name)
                    yield name, parameter

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._trained():
            if parameter.grad is not None:
                yield f"the gradient of {name}", parameter.grad
            for optimizer in _alive(self._optimizers):
                for key, kept in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                    if isinstance(kept, torch.Tensor):
                        yield f"the optimizer's {key} of {name}", kept
            yield name, parameter
        for model in _alive(self._models):
            for name, buffer in model.named_buffers():
                yield f"the buffer {name}", buffer


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [each for reference in references if (each := reference()) is not None]


def _elements(tensor: torch.Tensor) -> Values:
    """Some from all over it, in logical order; none of what is no fraction."""
    if not is_of_fractions(tensor) or tensor.layout is not torch.strided:
        return np.zeros(0)
    whole = in_reals(tensor.detach())
    flat = whole.reshape(-1)[:: spacing(whole.numel(), _MOST_ELEMENTS)]
    found: Values = as_array(flat.double())
    return found


def _hash(tensor: torch.Tensor) -> str:
    """In logical order, whatever its memory format. 0.1 ms for a MB."""
    if not is_plain(tensor):  # the gradient of an embedding, say, or an adjacency that is a buffer
        return " ".join(map(_hash, strided_parts(tensor)))
    flat = tensor.detach().contiguous().reshape(-1)
    crc = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if flat.numel() * flat.element_size() <= _WHOLE:
        return f"{zlib.crc32(_bytes(flat), crc):08x}"
    crc = zlib.crc32(_bytes(flat[:: spacing(flat.numel(), _WHOLE // flat.element_size())].contiguous()), crc)
    data = as_bytes(flat)
    words = data[: len(data) // 8 * 8].view(np.uint64)
    return f"{zlib.crc32(data[len(words) * 8 :].tobytes(), crc):08x} {int(np.add.reduce(words)):x}"


def _bytes(flat: torch.Tensor) -> bytes:
    found: bytes = as_bytes(flat).tobytes()
    return found
