"""Words of this process's memory that say whether objects are what they were, all of them read in one call.

Between two steps of a model the processor's caches hold nothing of a data set: what a look takes is the memory that it
touches, 0.1 µs a line, and the code that it runs through for the first time. A dict says by its version that it is the
same, a list by where its items lie and which they are. No object that is merely held is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import eq, getitem
from typing import Any, NamedTuple

import numpy as np

from overdrive.changes.word_places import WORD, Places, all_words, word_at

_TO_BYTES: Any = np.ndarray.tobytes
_AT_ONCE = 500  # words: of more, numpy lets go of Python's lock while it reads


class Words:
    """Words that are to stay what they were. Where one is another, what it belongs to is asked whether it changed."""

    def __init__(self) -> None:
        self._checks: list[Callable[[], bool]] = []  # these keep alive what the words are of
        self._own: list[_Piece] = []
        self._behind: list[_Piece] = []
        self._added: tuple[list[_Word], list[_Word]] = [], []
        self._left: list[Callable[[], bool]] = []  # whose words change although they do not: they are asked each time
        self._places: list[Any] = []
        self._contents: list[bytes] = []

    def add(self, check: Callable[[], bool], places: Places) -> None:
        """From now on these are to stay as they are.

        Args:
            check: tells exactly whether what the words belong to has changed.
        """
        number = len(self._checks)
        self._checks.append(check)
        known = iter(places.known)
        for added, addresses in zip(self._added, (places.own, places.behind), strict=True):
            added += [
                (each, number, held if (held := next(known, None)) is not None else word_at(each)) for each in addresses
            ]

    def seal(self) -> None:
        """All have been told."""
        self._own, self._behind = map(_pieces, self._added)
        self._look_at(self._own + self._behind)

    def _look_at(self, pieces: list[_Piece]) -> None:
        self._places = [each.places for each in pieces]
        self._contents = [each.content for each in pieces]

    def changed(self) -> bool:
        left = self._left
        while not _same(self._places, self._contents):
            if not (numbers := _others(self._own) or self._others_behind()):
                return True  # it changes while we look
            suspects = [self._checks[number] for number in numbers]
            if any(check() for check in suspects):
                return True
            self._own, self._behind = _without(self._own, numbers), _without(self._behind, numbers)
            self._look_at(self._own + self._behind)
            self._left = self._left + suspects
        return any(check() for check in left) if left else False

    def _others_behind(self) -> list[int]:
        """Whose words are others than they were in memory that may be gone: each is read alone, behind its own."""
        found = []
        for piece in self._behind:
            if not _read_alone(self._own, [piece]):
                numbers = sorted(set(piece.of.tolist()))
                found += [each for each in numbers if not _read_alone(_only(self._own, each), _only([piece], each))]
        return sorted(set(found))


_Word = tuple[int, int, int]  # address, whose, and what it held


class _Piece(NamedTuple):
    """Some words, in the order of their addresses, so that neighbours are read together."""

    places: Any  # numbers of words
    of: Any
    held: Any
    content: bytes


def _pieces(added: list[_Word]) -> list[_Piece]:
    addresses, numbers, held = zip(*sorted(added), strict=True) if added else ((), (), ())
    places = np.array(addresses, np.intp) // WORD - 1
    return _divided(places, np.array(numbers, np.intp), np.array(held, np.uint64))


def _divided(places: Any, of: Any, held: Any) -> list[_Piece]:
    parts = [slice(start, start + _AT_ONCE) for start in range(0, len(places), _AT_ONCE)]
    return [_Piece(places[each], of[each], held[each], held[each].tobytes()) for each in parts]


def _same(places: list[Any], contents: list[bytes]) -> bool:
    """Whether pieces hold what they held, each read only if all before it do.

    It is one call that runs no code of Python's and does not let go of its lock: no thread of the program gives back
    memory between two pieces.
    """
    return all(map(eq, map(_TO_BYTES, map(getitem, repeat(all_words()), places)), contents))


def _read_alone(own: list[_Piece], behind: list[_Piece]) -> bool:
    pieces = own + behind
    return _same([each.places for each in pieces], [each.content for each in pieces])


def _others(pieces: list[_Piece]) -> list[int]:
    """Whose words are others than they were."""
    found: set[int] = set()
    for each in pieces:
        found.update(each.of[all_words()[each.places] != each.held].tolist())
    return sorted(found)


def _without(pieces: list[_Piece], numbers: list[int]) -> list[_Piece]:
    return _chosen(pieces, lambda of: ~np.isin(of, numbers))


def _only(pieces: list[_Piece], number: int) -> list[_Piece]:
    return _chosen(pieces, lambda of: of == number)


def _chosen(pieces: list[_Piece], choose: Callable[[Any], Any]) -> list[_Piece]:
    if not pieces:
        return []
    places, of, held = (np.concatenate([each[part] for each in pieces]) for part in range(3))
    chosen = choose(of)
    return _divided(places[chosen], of[chosen], held[chosen])
