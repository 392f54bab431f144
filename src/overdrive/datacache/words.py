"""Words of this process's memory that say whether objects are what they were, all of them read in one call.

Between two steps of a model the processor's caches hold nothing of a data set: what a look takes is the memory that it
touches, 0.1 µs a line, and the code that it runs through for the first time. A dict says by its version that it is the
same, a list by where its items lie and which they are. No object that is merely held is touched.

Where CPython keeps these words is found out by trying. Where it has none (3.13 has no versions), there are no words.
"""

from __future__ import annotations

import ctypes
import gc
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np

_WORD = 8
_HEAD = object.__basicsize__
_TYPE = _HEAD - _WORD
_BEHIND_HEAD = 3 * _WORD  # where a garbage collected object has its dict, if that lies before it
_OF_ARRAYS = 7 * _WORD  # what numpy's C interface promises of each array (see `array_content`)
_MANY = 1 << 12  # items of one list
_ALL = 1 << 48  # bytes that a process may address


class Places(NamedTuple):
    """Addresses of words: in objects themselves, and in memory that may be gone if one of those is another."""

    own: Iterable[int]
    behind: Iterable[int] = ()


class Words:
    """Words that are to stay what they were. Where one is another, what it belongs to is asked whether it changed."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], bool]] = []  # these keep alive what the words are of
        self._own = _Stage()
        self._behind = _Stage()
        self._left: list[Callable[[], bool]] = []  # whose words change although they do not: they are asked each time

    def add(self, check: Callable[[], bool], places: Places) -> None:
        """From now on these are to stay as they are.

        Args:
            check: tells exactly whether what the words belong to has changed.
        """
        for stage, addresses in zip((self._own, self._behind), places, strict=True):
            stage.add(len(self._checks), addresses)
        self._checks.append(check)

    def seal(self) -> None:
        """All have been told."""
        self._own.seal()
        self._behind.seal()

    def changed(self) -> bool:
        left = self._left
        for stage in (self._own, self._behind):
            if stage.any and (numbers := stage.others()):
                suspects = [self._checks[number] for number in numbers]
                if any(check() for check in suspects):
                    return True
                self._own.forget(numbers)
                self._behind.forget(numbers)
                self._left = self._left + suspects
        return any(check() for check in left) if left else False


class _Stage:
    """
    Attributes:
        any: whether there are any words.
    """

    def __init__(self) -> None:
        self.any = False
        self._added: list[tuple[int, int, int]] = []  # address, whose, and the word

    def add(self, number: int, addresses: Iterable[int]) -> None:
        self._added += [(each, number, _word(each)) for each in addresses]

    def seal(self) -> None:
        addresses, numbers, held = zip(*sorted(self._added), strict=True) if self._added else ((), (), ())
        places = np.array(addresses, np.intp) // _WORD - 1  # in order, so that neighbours are read together
        self._set(places, np.array(numbers, np.intp), np.array(held, np.uint64))

    def _set(self, places: Any, of: Any, held: Any) -> None:
        self.any = len(places) > 0
        self._known = places, of, held, held.tobytes()

    def others(self) -> list[int]:
        """Whose words are others than they were."""
        places, of, held, content = self._known
        now = _words()(places)
        if now.tobytes() == content:
            return []
        return sorted(set(of[now != held].tolist()))

    def forget(self, numbers: list[int]) -> None:
        places, of, held, _ = self._known
        stay = ~np.isin(of, numbers)
        self._set(places[stay], of[stay], held[stay])


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
    start = _word(id(items) + _HEAD + _WORD)
    return Places((id(items) + _HEAD, id(items) + _HEAD + _WORD), range(start, start + _WORD * len(items), _WORD))


def of_array(array: Any, contents: Iterable[tuple[int, int]]) -> Places | None:
    """That a numpy array has the same form, and that pieces of memory that it refers to hold what they held."""
    if not _usable():
        return None
    head = range(id(array) + _HEAD, id(array) + _HEAD + _OF_ARRAYS, _WORD)
    return Places(head, [word for start, end in contents for word in range(start // _WORD * _WORD, end, _WORD)])


def of_types(things: Iterable[Any]) -> Places | None:
    return Places([id(each) + _TYPE for each in things]) if _usable() else None


def of_spaces(things: Iterable[Any]) -> Places | None:
    """That they have their attributes in the same dicts."""
    found = []
    for each in things if _usable() else ():
        offset = type(each).__dictoffset__
        place = id(each) + offset if offset > 0 else id(each) - _BEHIND_HEAD
        space = vars(each)  # which makes it, where nobody has asked for it before
        if _word(place) != id(space):
            return None
        found.append(place)
    return Places(found) if found else None


def of_cells(cells: Iterable[types.CellType]) -> Places | None:
    return Places([id(each) + _HEAD for each in cells]) if _usable() else None


def of_function(function: types.FunctionType) -> Places | None:
    """Its code, what its arguments are where they are not given, and its attributes."""
    offsets = _function_at()
    return Places([id(function) + each for each in offsets]) if offsets else None


def _word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


@cache
def _words() -> Callable[[Any], Any]:
    """Gives words by their numbers, all of memory being one array that begins at the second."""
    everything: Any = (ctypes.c_uint64 * (_ALL // _WORD - 1)).from_address(_WORD)
    whole: Any = np.frombuffer(everything, np.uint64)
    return cast("Callable[[Any], Any]", whole.__getitem__)


@cache
def _usable() -> bool:
    """Whether types, lists and cells lie as they are looked at here."""
    import platform

    if platform.python_implementation() != "CPython" or ctypes.sizeof(ctypes.c_void_p) != _WORD or _HEAD != 2 * _WORD:
        return False
    known = [None, True, "x"]
    cell = types.CellType(known)
    start = _word(id(known) + _HEAD + _WORD)
    return (
        _word(id(known) + _TYPE) == id(list)
        and _word(id(known) + _HEAD) == len(known)
        and [_word(start + _WORD * place) for place in range(3)] == list(map(id, known))
        and _word(id(cell) + _HEAD) == id(known)
        and max(start, id(known), id(list)) < _ALL
    )


@cache
def _version_at() -> int:
    """Where a dict has the version that is another after each change of it; 0: nowhere."""
    if not _usable():
        return 0
    place = _HEAD + _WORD
    for make, changes in _CHANGES:
        for change in changes:
            thing = make()
            space = thing if isinstance(thing, dict) else vars(thing)
            if isinstance(space, types.MappingProxyType):
                (space,) = gc.get_referents(space)
            before = _word(id(space) + place)
            change(thing)
            if _word(id(space) + place) == before:
                return 0
    return place


@cache
def _function_at() -> list[int]:
    if not _usable():
        return []

    def known(one: Any = (), *, other: Any = ()) -> None: ...

    found = []
    for held in (known.__code__, known.__defaults__, known.__kwdefaults__, known.__dict__):
        places = [at for at in range(_HEAD, type(known).__basicsize__, _WORD) if _word(id(known) + at) == id(held)]
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
