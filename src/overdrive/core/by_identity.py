"""Something kept for each of a program's own objects, as long as that object lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class ByIdentity(MutableMapping[Any, _Value]):
    """By which object it is. A `WeakKeyDictionary` asks the objects themselves whether they are equal: two models of
    a class with `@dataclass(unsafe_hash=True)` are, whatever their weights."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], _Value]] = {}

    def __getitem__(self, key: Any) -> _Value:
        found = self._kept[id(key)]
        if found[0]() is not key:  # another one, which is gone, had this id
            raise KeyError(key)
        return found[1]

    def __setitem__(self, key: Any, value: _Value) -> None:
        place, kept = id(key), self._kept

        def gone(reference: weakref.ref[Any]) -> None:
            if place in kept and kept[place][0] is reference:
                del kept[place]

        kept[place] = weakref.ref(key, gone), value

    def __delitem__(self, key: Any) -> None:
        self[key]
        del self._kept[id(key)]

    def __iter__(self) -> Iterator[Any]:
        """Those that still live, the oldest first."""
        for reference, _ in list(self._kept.values()):
            if (key := reference()) is not None:
                yield key

    def __len__(self) -> int:
        return len(self._kept)
