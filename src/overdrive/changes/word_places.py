"""Where words lie in this process's memory that say whether objects are what they were (see `words`).

Where CPython keeps them is found out by trying. Where it has none (3.13 has no versions of dicts), there are none.
"""

from __future__ import annotations

import ctypes
import gc
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

WORD = 8
_HEAD = object.__basicsize__
_TYPE = _HEAD - WORD
_BEHIND_HEAD = 3 * WORD  # where a garbage collected object has its dict, if that lies before it
_OF_ARRAYS = 7 * WORD  # what numpy's C interface promises of each array (see `array_content`)
_MANY = 1 << 12  # items of one list
_ALL = 1 << 48  # bytes that a process may address


class Places(NamedTuple):
    """Addresses of words: in objects themselves, and in memory that may be gone if one of those is another.

    Attributes:
        known: what they hold, in this order, as far as that is known without reading them.
    """

    own: Iterable[int]
    behind: Iterable[int] = ()
    known: Iterable[int] = ()


def of_dict(space: Mapping[str, Any]) -> Places | None:
    """That a dict, or one that is seen through a class's `__dict__`, has the same items in the same order."""
    if isinstance(space, types.MappingProxyType):
        (space,) = gc.get_referents(space)
    version = _version_at()
    return Places((id(space) + version,)) if version and isinstance(space, dict) else None


def of_list(items: list[Any]) -> Places | None:
    """That it holds the very same items; None of many."""
    if not _usable() or len(items) > _MANY:
        return None
    held, start = list(items), word_at(id(items) + _HEAD + WORD)
    own = (id(items) + _HEAD, id(items) + _HEAD + WORD)
    return Places(own, range(start, start + WORD * len(held), WORD), (len(held), start, *map(id, held)))


def of_array(array: Any, contents: Iterable[tuple[int, int]]) -> Places | None:
    """That a numpy array has the same form, and that pieces of memory that it refers to hold what they held."""
    if not _usable():
        return None
    head = range(id(array) + _HEAD, id(array) + _HEAD + _OF_ARRAYS, WORD)
    return Places(head, [word for start, end in contents for word in range(start // WORD * WORD, end, WORD)])


def of_types(things: Iterable[Any]) -> Places | None:
    return Places([id(each) + _TYPE for each in things]) if _usable() else None


def of_spaces(things: Iterable[Any]) -> Places | None:
    """That they have their attributes in the same dicts."""
    found = []
    for each in things if _usable() else ():
        offset = type(each).__dictoffset__
        place = id(each) + offset if offset > 0 else id(each) - _BEHIND_HEAD
        space = vars(each)  # which makes it, where nobody has asked for it before
        if word_at(place) != id(space):
            return None
        found.append(place)
    return Places(found) if found else None


def of_cells(cells: Iterable[types.CellType]) -> Places | None:
    return Places([id(each) + _HEAD for each in cells]) if _usable() else None


def of_function(function: types.FunctionType) -> Places | None:
    """Its code, what its arguments are where they are not given, its attributes, names and docstring."""
    offsets = _function_at()
    return Places([id(function) + each for each in offsets]) if offsets else None


def of_object(thing: Any) -> Places | None:
    """All that lies in an object itself."""
    return Places(range(id(thing) + _HEAD, id(thing) + type(thing).__basicsize__, WORD)) if _usable() else None


def of_class(kind: type) -> Places | None:
    """What it inherits from, and its names."""
    offsets = _class_at()
    return Places([id(kind) + each for each in offsets]) if offsets else None


def word_at(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@cache
def all_words() -> Any:
    """Words by their numbers, all of memory being one array that begins at the second."""
    everything: Any = (ctypes.c_uint64 * (_ALL // WORD - 1)).from_address(WORD)
    return np.frombuffer(everything, np.uint64)


@cache
def _usable() -> bool:
    """Whether types, lists and cells lie as they are looked at here."""
    import platform

    if platform.python_implementation() != "CPython" or ctypes.sizeof(ctypes.c_void_p) != WORD or _HEAD != 2 * WORD:
        return False
    known = [None, True, "x"]
    cell = types.CellType(known)
    start = word_at(id(known) + _HEAD + WORD)
    return (
        word_at(id(known) + _TYPE) == id(list)
        and word_at(id(known) + _HEAD) == len(known)
        and [word_at(start + WORD * place) for place in range(3)] == list(map(id, known))
        and word_at(id(cell) + _HEAD) == id(known)
        and max(start, id(known), id(list)) < _ALL
    )


@cache
def _version_at() -> int:
    """Where a dict has the version that is another after each change of it; 0: nowhere."""
    if not _usable():
        return 0
    place = _HEAD + WORD
    for make, changes in _CHANGES:
        for change in changes:
            thing = make()
            space = thing if isinstance(thing, dict) else vars(thing)
            if isinstance(space, types.MappingProxyType):
                (space,) = gc.get_referents(space)
            before = word_at(id(space) + place)
            change(thing)
            if word_at(id(space) + place) == before:
                return 0
    return place


@cache
def _function_at() -> list[int]:
    def known(one: Any = (), *, other: Any = ()) -> None:
        """Known."""

    names = (known.__name__, known.__qualname__, known.__doc__)
    return _where(known, (known.__code__, known.__defaults__, known.__kwdefaults__, known.__dict__, *names))


@cache
def _class_at() -> list[int]:
    class Known:
        pass

    return _where(Known, (Known.__mro__, Known.__name__, Known.__qualname__))


def _where(known: Any, parts: Iterable[Any]) -> list[int]:
    """At how many bytes in an object it refers to each of these; nothing unless that is clear."""
    found = []
    for held in parts if _usable() else ():
        places = [at for at in range(_HEAD, type(known).__basicsize__, WORD) if word_at(id(known) + at) == id(held)]
        if len(places) != 1:
            return []
        found += places
    return found


class _Object:
    def __init__(self) -> None:
        self.one = 1
        self.two = 2


_CHANGES: tuple[tuple[Callable[[], Any], tuple[Callable[[Any], object], ...]], ...] = (
    (
        lambda: {"one": 1, "two": 2},
        (
            lambda known: known.update(one=3),
            lambda known: known.update({"two": 1, "three": 3}),
            lambda known: known.setdefault("three", 3),
            lambda known: known.__setitem__("one", 3),
            lambda known: known.__ior__({"one": 3}),
            lambda known: known.pop("one"),
            lambda known: known.popitem(),
            lambda known: known.clear(),
            lambda known: known.__init__(one=3),
        ),
    ),
    (dict, (lambda known: known.update({str(each): each for each in range(20)}),)),
    (
        _Object,
        (
            lambda known: setattr(known, "one", 3),
            lambda known: setattr(known, "three", 3),
            lambda known: delattr(known, "two"),
            lambda known: vars(known).update(one=3),
        ),
    ),
    (
        lambda: type("Known", (), {"one": 1}),
        (lambda known: setattr(known, "one", 3), lambda known: delattr(known, "one")),
    ),
)
