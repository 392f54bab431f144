"""The visible state of an object: plain values, slots, bytes, and whether that is all of it."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain, pairwise
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

PLAIN = frozenset((str, int, float, bool, type(None), bytes, complex))
_SEQUENCES = frozenset((list, tuple))
_NO_FIELDS = ("__dict__", "__weakref__", "__doc__")
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
    """The attributes that lie in the object itself, by the names that they have there; a class may hide its base's."""
    return [
        (name, _got(member, thing))
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    ]


def slots_held(thing: Any) -> list[Any]:
    return [value for _, value in slots_of(thing, type(thing))]


def fields_of(thing: Any) -> list[Any]:
    """What an object that C made holds, as far as Python can ask for it: an error's cause, what a partial calls."""
    found = []
    for base in type(thing).__mro__[:-1]:
        for name, field in vars(base).items():
            if isinstance(field, (MemberDescriptorType, GetSetDescriptorType)) and name not in _NO_FIELDS:
                value = _got(field, thing)
                found.append(sys.intern(str(value)) if type(value) is int else value)  # made anew at each asking
    return found


def _got(descriptor: Any, thing: Any) -> Any:
    try:
        return descriptor.__get__(thing)
    except (AttributeError, TypeError):
        return "unset"


def decimals(context: Any) -> tuple[object, ...]:
    """How numbers of the module `decimal` are calculated with."""
    own = (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp)
    return *own, *context.traps.values()


def hides_its_attributes(kind: type) -> bool:
    """Whether its objects say something else than what their attributes are."""
    own = next((vars(base)["__dict__"] for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return own is not None and not isinstance(own, GetSetDescriptorType)


def pickles_itself(kind: type) -> bool:
    """Whether a class says by itself what its state is."""
    return any(
        getattr(kind, name, None) is not getattr(object, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")  # Python 3.10's object has not the last
    )


def is_reduced_in_c(kind: type) -> bool:
    """Whether it is C that says what its state is, whatever its attributes are: of a `ctypes` array, say."""
    for name in ("__reduce_ex__", "__reduce__", "__getstate__"):
        own = getattr(kind, name, None)
        if own is not getattr(object, name, None):
            return not isinstance(own, FunctionType)
    return False


def has_state_of_c(kind: type) -> bool:
    """Whether there is more to its objects than attributes, slots, and what they hold or stand for as `BUILT_UPON`."""
    root = next(base for base in kind.__mro__ if base in _SEEN_THROUGH)
    slots = sum(
        isinstance(value, MemberDescriptorType)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for value in vars(base).values()
    )
    return kind.__basicsize__ > _size(root, slots, kind.__dictoffset__ != 0, kind.__weakrefoffset__ != 0)


@cache
def _size(root: Any, slots: int, with_space: bool, with_weak: bool) -> int:
    """Of objects of a class that Python itself makes."""
    if root.__itemsize__:  # which has no slots
        return type("Made", (root,), {} if with_space else {"__slots__": ()}).__basicsize__
    names = [f"slot{number}" for number in range(slots)]
    names += ["__dict__"] * (with_space and not root.__dictoffset__)
    names += ["__weakref__"] * (with_weak and not root.__weakrefoffset__)
    return type("Made", (root,), {"__slots__": names}).__basicsize__


def built_upon(thing: Any) -> list[Any]:
    """What an object of a subclass of containers or numbers holds or stands for, whatever its own methods say."""
    return [own(thing) for base, own in BUILT_UPON.items() if isinstance(thing, base)]


def _items(thing: Any) -> dict[Any, Any]:
    return dict(OrderedDict.items(thing) if isinstance(thing, OrderedDict) else dict.items(thing))


def remembered_by(function: Any) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """Where an `lru_cache` keeps what it remembers, and that, by its arguments in the order in which they came; None
    where it cannot be seen."""
    parts = gc.get_referents(function)
    for kept in parts:
        if type(kept) is not dict or kept is function.__dict__ or len(kept) != function.cache_info().currsize:
            continue
        if function.cache_parameters()["maxsize"] is None:
            return kept, kept
        if {type(each).__name__ for each in kept.values()} <= {"_lru_list_elem"}:
            followed = {id(key): value for key, value in pairwise(parts)}
            return kept, {key: followed.get(id(key)) for key in kept}
    return None


BUILT_UPON: dict[type, Callable[[Any], Any]] = {
    dict: _items,
    list: lambda thing: list(list.__iter__(thing)),
    tuple: lambda thing: tuple(tuple.__iter__(thing)),
    set: lambda thing: set(set.__iter__(thing)),
    frozenset: lambda thing: frozenset(frozenset.__iter__(thing)),
    str: str.__str__,
    bytes: lambda thing: bytes.__getitem__(thing, slice(None)),
    int: int.__int__,
    float: float.__float__,
}
# Of the last two more is seen: the order, the state.
_SEEN_THROUGH = frozenset((object, *BUILT_UPON, OrderedDict, random.Random))


def hash_of(data: Any) -> bytes:
    """blake2b of bytes; of long ones in parts by all cores: 0.6 GB a second each."""
    if len(data) <= _PART:
        return hashlib.blake2b(data).digest()
    parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return b"".join(pool.map(lambda part: hashlib.blake2b(part).digest(), parts))
