"""A captured graph: the operations that reached the device, by the memory that they touch. A replay calls no Python of
the program's and of the technique's, and reads and writes the same memory again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

# Bytes of memory that nobody has written: large numbers, and NaN in bf16 and fp8. Whole numbers are zeros: they may be
# places, and what is recorded is computed on the CPU once.
_POISON = 0x7F


@dataclass(frozen=True)
class Place:
    """A tensor by its memory. What the graph did not make itself it does not keep alive, as no real graph does."""

    storage: Any
    own: bool
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def tensor(self) -> torch.Tensor:
        storage = self.storage
        if not self.own:
            storage = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)  # type: ignore[attr-defined]
            if storage is None:
                raise RuntimeError("a graph reads memory that was freed since it was captured")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.sizes, self.strides)


@dataclass
class _Taped:
    call: Callable[..., Any]
    arguments: list[Any]
    spec: Any
    results: list[Place | None]  # None: no tensor, or memory of an argument
    random: bool


class Tape:
    def __init__(self, stream: str, pool: Any) -> None:
        self.stream, self.pool = stream, pool
        self.broken = ""
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self._taped: list[_Taped] = []
        self._made: dict[int, Any] = {}  # storages of its own, which are kept: the pool's memory
        self._whole: set[int] = set()  # those of whole numbers
        self._before: dict[int, tuple[Any, Any]] = {}

    def save(self, tensor: torch.Tensor) -> None:
        """This memory is about to be written to by an operation that is only recorded."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._made and storage._cdata not in self._before:
            self._before[storage._cdata] = storage, storage.clone()

    def add(self, call: Callable[..., Any], args: Any, kwargs: Any, results: list[Any], random: bool) -> None:
        leaves, spec = tree_flatten((args, kwargs))
        given = {each.untyped_storage()._cdata for each in leaves if _strided(each)}
        arguments = [self._place(each) if _strided(each) else each for each in leaves]
        places: list[Place | None] = []
        for each in results:
            if not _strided(each) or each.untyped_storage()._cdata in given:
                places.append(None)
                continue
            self.made(each)
            places.append(self._place(each))
        self._taped.append(_Taped(call, arguments, spec, places, random))

    def made(self, tensor: torch.Tensor) -> None:
        """Memory that an operation of this recording allocated, without a value."""
        self._made[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        if not tensor.is_floating_point():
            self._whole.add(tensor.untyped_storage()._cdata)

    def _place(self, tensor: torch.Tensor) -> Place:
        storage = tensor.untyped_storage()
        own = storage._cdata in self._made
        kept = storage if own else StorageWeakRef(storage)
        return Place(kept, own, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def storages(self) -> dict[int, Any]:
        return dict(self._made)

    def end(self) -> None:
        """Nothing was carried out: what was there is as it was, and what was made has no value before a replay."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()
        for key, storage in self._made.items():
            if storage.nbytes():
                torch.empty(0, dtype=torch.uint8).set_(storage).fill_(0 if key in self._whole else _POISON)

    def play(self, random: Callable[[], Any]) -> None:
        for each in self._taped:
            leaves = [leaf.tensor() if isinstance(leaf, Place) else leaf for leaf in each.arguments]
            args, kwargs = tree_unflatten(leaves, each.spec)
            if each.random:
                with random():
                    made = each.call(*args, **kwargs)
            else:
                made = each.call(*args, **kwargs)
            for place, value in zip(each.results, tree_flatten(made)[0], strict=True):
                if place is not None:
                    torch.ops.aten.copy_.default(place.tensor(), value)


def _strided(each: Any) -> bool:
    return isinstance(each, torch.Tensor) and each.layout is torch.strided


def detached(things: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda each: each.detach(), things)
