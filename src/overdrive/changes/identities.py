"""Whether places still hold the very same objects, in the same order: items of containers, names, cells, all together.

An item that was replaced by an equal one counts as changed (`True` in the place of 1, -0.0 of 0.0): what is compared is
where objects lie, at 5 ns an item, and no code of the program's is run.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import chain, repeat
from operator import is_
from typing import Any

from overdrive.changes.word_places import Places, word_at
from overdrive.changes.words import Words
from overdrive.changes.written_pages import Pages

# A longer list is compared where it lies, not copied with the others: 50,000 items in 20 µs, not in 500. Of far longer
# ones the kernel is asked whether that memory was written to: it is not read.
_LONG = 256
_LONGER = 8192
_FEW = 3  # containers of one kind; more are gone through in one call
_POINTER = ctypes.sizeof(ctypes.c_void_p)
_ITEMS = object.__basicsize__ + _POINTER  # where CPython's lists say where their items are

_compare = ctypes.PyDLL(None).memcmp
_compare.argtypes = (ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)


class Identities:
    """Objects that are to be found again where they were. One comparison is made of all of them.

    Args:
        words: told of all that have such; they may be asked first.
    """

    def __init__(self, words: Words) -> None:
        self._added: dict[Any, list[Any]] = {}  # containers, by what gives their parts
        self._sources: list[Callable[[], Iterable[Any]]] = []
        self._long: list[_LongList] = []
        self._words = words
        self._parts: list[_Parts] = []  # of those that have words
        self._held: list[Any] = []  # keeps them alive, too: a place says nothing once its object is gone
        self._places = b""

    def add(self, parts: Callable[[Any], Iterable[Any]], container: Any, places: Places | None = None) -> None:
        """
        Args:
            parts: gives what a container holds; the kind's own method, which a class of the program's cannot have
                replaced.
            places: of the words that say by themselves whether it is the same.
        """
        if type(container) is list and len(container) >= _LONG:
            self._long.append(_LongList(container))
        elif places is not None:
            self._parts.append(each := _Parts(parts, container))
            self._words.add(each.changed, places)
        else:
            self._added.setdefault(parts, []).append(container)

    def seal(self) -> None:
        """From now on they are to stay as they are."""
        for parts, containers in self._added.items():
            if len(containers) > _FEW:
                self._sources.append(partial(_together, parts, containers))
            else:
                self._sources += [partial(parts, each) for each in containers]
        self._held = self._now()
        self._places = places_of(self._held)

    def changed(self) -> bool:
        """Whether any of them was."""
        return self.changed_without_words() or any(each.changed() for each in self._parts)

    @property
    def any_without_words(self) -> bool:
        return bool(self._sources or self._long)

    def changed_without_words(self) -> bool:
        """Whether one was of which no words tell."""
        if self._sources:
            try:
                now = self._now()
            except (LookupError, ValueError):  # a name, or a closure's, that stands for nothing now
                return True
            if differ(now, self._held, self._places):
                return True
        return any(each.changed() for each in self._long)

    def _now(self) -> list[Any]:
        found: list[Any] = []
        for parts in self._sources:
            found += parts()
            found.append(_END)  # what one lost is not what the next gained
        return found


class _Parts:
    """What one container holds."""

    def __init__(self, parts: Callable[[Any], Iterable[Any]], container: Any) -> None:
        self._parts = parts
        self._container = container
        self._held = list(parts(container))

    def changed(self) -> bool:
        try:
            now = list(self._parts(self._container))
        except (LookupError, ValueError):
            return True
        return len(now) != len(self._held) or not all(map(is_, now, self._held))


class _LongList:
    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._pages: Pages | None = None
        self._whole: Held | None = None
        if not _lies_as_known():
            self._held = list(items)
            return
        head, start = id(items) + _ITEMS - _POINTER, word_at(id(items) + _ITEMS)
        if len(items) >= _LONGER:
            self._pages = Pages.of(start, _POINTER * len(items))
        self._held = list(items)
        places = places_of(self._held)
        lies_there = (head, b"".join(each.to_bytes(_POINTER, sys.byteorder) for each in (len(self._held), start)))
        self._whole = self._parts = Held(lies_there, (start, places))
        if self._pages is not None:
            first, end = self._pages.start, self._pages.end
            self._parts = Held(lies_there, (start, places[: first - start]), (end, places[end - start :]))

    def changed(self) -> bool:
        held = self._parts if self._whole else None
        if self._pages is not None and self._pages.written():  # or this is a fork, of which there is no account
            self._pages.forget()
            held = self._whole
        if held is not None and held.same():
            return False
        return len(self._items) != len(self._held) or not all(map(is_, self._items, self._held))


def _together(parts: Callable[[Any], Iterable[Any]], containers: list[Any]) -> Iterable[Any]:
    return chain.from_iterable(chain.from_iterable(zip(map(parts, containers), repeat((_END,)), strict=False)))


def differ(items: list[Any], held: list[Any], places: bytes) -> bool:
    """Whether a list holds other objects than it held."""
    if len(items) != len(held):
        return True
    if _lies_as_known():
        return bool(places) and _compare(word_at(id(items) + _ITEMS), places, len(places)) != 0
    return not all(map(is_, items, held))


def places_of(items: list[Any]) -> bytes:
    """Where the objects of a list lie."""
    if not items or not _lies_as_known():
        return b""
    return ctypes.string_at(word_at(id(items) + _ITEMS), _POINTER * len(items))


class Held:
    """What pieces of memory hold now, each of which must stay this process's while those before it are what they were.

    Args:
        pieces: where each begins, and what it holds.
    """

    def __init__(self, *pieces: tuple[int, bytes]) -> None:
        self._contents = [content for _, content in pieces if content]
        self._memory = [(ctypes.c_char * len(content)).from_address(start) for start, content in pieces if content]

    def same(self) -> bool:
        """Whether they still do.

        Told in one call, so that no thread of the program gives one back meanwhile, and not by a call through `ctypes`:
        that takes 14 µs where the caches are cold.
        """
        return all(map(bytes.startswith, self._contents, self._memory))


@cache
def _lies_as_known() -> bool:
    """Whether Python's lists have their items in the memory that is looked at."""
    import platform

    if platform.python_implementation() != "CPython" or list.__basicsize__ != _ITEMS + 2 * _POINTER:
        return False
    known = [None, True, "x"]
    lie = ctypes.string_at(word_at(id(known) + _ITEMS), _POINTER * len(known))
    return lie == b"".join(id(each).to_bytes(_POINTER, sys.byteorder) for each in known)


_END = object()
