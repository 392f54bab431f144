"""The visible state of an object: plain values, slots, bytes, and whether that is all of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from types import FunctionType
from typing import Any

PLAIN = frozenset((str, int, float, bool, type(None), bytes, complex))
_SEQUENCES = frozenset((list, tuple))
_PART = 8 << 20  # of long content that one thread hashes at a time


def plain_leaves(container: Any, depth: int = 3) -> list[Any] | None:
    """All plain values in a container of plain values, at most three levels deep; None for any other."""
    items: Iterable[Any] = container
    if type(container) is dict:
        items = list(chain(container, container.values()))
    kinds = set(map(type, items)) - PLAIN
    if not kinds:
        return list(items)
    if depth == 0 or not kinds <= {list, tuple, dict}:
        return None
    leaves = [each for each in items if type(each) in PLAIN]
    inner = list(chain.from_iterable(each for each in items if type(each) in _SEQUENCES))
    for each in items:
        if type(each) is dict:
            inner += [*each, *each.values()]
    deeper = plain_leaves(inner, depth - 1)
    return None if deeper is None else leaves + deeper


def slots_of(thing: Any, kind: type) -> list[tuple[str, Any]]:
    """The attributes that lie in the object itself, by the names that they have there."""
    found = []
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                attribute = f"_{base.__name__.lstrip('_')}{name}" if private else name
                found.append((attribute, getattr(thing, attribute, "unset")))
    return found


def pickles_itself(kind: type) -> bool:
    """Whether a class says by itself what its state is."""
    return any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")  # Python 3.10's object has not the last
    )


def is_reduced_in_c(kind: type) -> bool:
    """Whether it is C that says what its state is, whatever its attributes are: of a `ctypes` array, say."""
    for name in ("__reduce_ex__", "__reduce__"):
        own = getattr(kind, name)
        if own is not getattr(object, name):
            return not isinstance(own, FunctionType)
    return False


def hash_of(data: Any) -> bytes:
    """blake2b of bytes; of long ones in parts by all cores: 0.6 GB a second each."""
    if len(data) <= _PART:
        return hashlib.blake2b(data).digest()
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return b"".join(pool.map(lambda part: hashlib.blake2b(part).digest(), parts))
