"""Detects quickly that a data set was changed since it was fingerprinted."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Arrays up to here are hashed each time (some ms); larger ones when that takes under 2 % of the time since
# the last look, so that `next(iter(loader))` in every step does not read the whole data set every step.
_ALWAYS_HASHED = 8 << 20
_PART = 1 << 20  # bytes that are copied and hashed at a time: they stay in the processor's cache
_SHARE_OF_TIME = 50.0
# Objects that are looked at for every batch: the data set itself comes first, then what it holds.
_QUICKLY = 64
_MANY = 4096


class Watch:
    """What was seen of objects, containers and arrays, and whether it still is so.

    A change that leaves everything equal may be reported as one (a number replaced by an equal
    number): the caller then takes a fingerprint, which decides.
    """

    def __init__(self) -> None:
        self._spaces: list[tuple[Mapping[str, Any], list[Any], list[int]]] = []
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._plain: list[tuple[Any, Any]] = []
        self._items: list[tuple[Any, list[Any], list[int]]] = []
        self._digests: list[tuple[Callable[[], str], list[str]]] = []
        self._alive: list[Any] = []  # an id says nothing once its object is gone
        self._tensors: list[tuple[Any, int]] = []
        self._arrays: list[tuple[Any, tuple[Any, ...]]] = []
        self._bytes = 0
        self._hashing_seconds = 0.0
        self._hashed_at = time.monotonic()

    def space(self, space: Mapping[str, Any]) -> None:
        """An object's attributes."""
        values = list(space.values())
        self._spaces.append((space, list(space), list(map(id, values))))
        self._alive.append(values)

    def name(self, space: Mapping[str, Any], name: str) -> None:
        """One global that a function refers to, or one attribute of a class."""
        self._names.append((space, name, space.get(name)))

    def plain(self, container: Any) -> None:
        """A list or the like of plain values, in at most three levels. A compare takes 10 ns an item."""
        self._plain.append((container, _copied(container)))

    def items(self, container: Any) -> None:
        """A list or dict whose values have been looked at one by one."""
        self._items.append((container, *_items(container)))
        self._alive.append(list(container.values()) if isinstance(container, dict) else list(container))

    def array(self, array: Any) -> None:
        """A numpy array. Its content is hashed."""
        self._bytes += array.nbytes
        began = time.perf_counter()
        self._arrays.append((array, _content(array)))
        self._hashing_seconds += time.perf_counter() - began

    def tensor(self, tensor: Any) -> None:
        self._tensors.append((tensor, tensor._version))

    def digest(self, thing: Any, take: Callable[[], str]) -> None:
        """Any other object, by a digest that `seal` takes."""
        self._alive.append(thing)
        self._digests.append((take, []))

    def seal(self) -> None:
        """Take the digests that are still to be taken."""
        for take, before in self._digests:
            before[:] = before or [take()]

    def touched(self, most: int | None = _QUICKLY) -> bool:
        """Whether an object's attributes were set, or a tensor written to. Takes a microsecond each."""
        for space, names, places in self._spaces[:most]:
            if list(map(id, space.values())) != places or list(space) != names:
                return True
        return any(tensor._version != version for tensor, version in self._tensors[:most])

    def rebound(self) -> bool:
        """`touched`, with all that a program sets between two batches: globals, and tensors such as a model's."""
        if self.touched() or any(space.get(name) is not value for space, name, value in self._names):
            return True
        return any(tensor._version != version for tensor, version in self._tensors[:_MANY])

    def changed(self) -> bool:
        """`touched`, and containers, globals and arrays as well: 0.1 ms for 50,000 paths."""
        if self.touched(None):
            return True
        if any(space.get(name) is not value for space, name, value in self._names):
            return True
        if any(bool(container != copy) for container, copy in self._plain):
            return True
        if any(_items(container) != (keys, places) for container, keys, places in self._items):
            return True
        if any(before and take() != before[0] for take, before in self._digests):
            return True
        return self._arrays_changed()

    def _arrays_changed(self) -> bool:
        now = time.monotonic()
        due = now - self._hashed_at > _SHARE_OF_TIME * self._hashing_seconds
        if self._bytes > _ALWAYS_HASHED and not due:
            return False
        self._hashed_at = now
        return any(_content(array) != before for array, before in self._arrays)


class Cell(dict[str, Any]):
    """A closure's cell as a mapping, for `Watch.name`."""

    def __init__(self, cell: types.CellType) -> None:
        super().__init__()
        self._cell = cell

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:
            return default


def _items(container: Any) -> tuple[list[Any], list[int]]:
    if isinstance(container, dict):
        return list(container), list(map(id, container.values()))
    return [], list(map(id, container))


_CONTAINERS = frozenset((list, tuple, dict, set))


def _copied(container: Any) -> Any:
    """A copy down to the values that cannot change."""
    if isinstance(container, dict):
        return {key: _copied(value) for key, value in container.items()}
    if isinstance(container, (list, tuple)) and not _CONTAINERS.isdisjoint(map(type, container)):
        return type(container)(map(_copied, container))
    if isinstance(container, (list, set, bytearray)):
        return container.copy()
    return container


def _content(array: Any) -> tuple[Any, ...]:
    """What tells one content from another: of objects their ids, of numbers a hash of each part, in order.

    Python's hash of bytes (SipHash) sees where each byte stands, as a sum does not: rows that only changed places are
    another content. It has a key of this process, which forked ones share.
    """
    if array.dtype.hasobject:
        return (array.shape, list(map(id, array.ravel().tolist())))
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    parts = tuple(hash(flat[start : start + _PART].tobytes()) for start in range(0, len(flat), _PART))
    return (array.dtype.str, array.shape, *parts)
