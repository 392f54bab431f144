"""Whether a numpy array is what it was: its form, and each of its bytes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from overdrive.changes import word_places
from overdrive.changes.identities import Held
from overdrive.changes.word_places import Places
from overdrive.changes.written_pages import Pages, Private, any_written, faults_so_far, private_memory, written_at

# Of arrays from here on the kernel is asked whether they were written to, where it knows; others are compared.
_LARGE = 64 << 10
_SMALL = 2 << 10  # up to here they are compared together with all else
_IN_VAIN = 32  # looks in turn before each of which there was a page fault: those to come are not asked for,
_AGAIN = 1024  # but after so many looks
_BESIDE = 8  # looks in turn before each of which others had written to the pages of small arrays
_PART = 1 << 20  # bytes that are copied and hashed at a time: they stay in the processor's cache
# What numpy's C interface promises of each array (`PyArrayObject_fields`): where its content lies, the number of its
# dimensions, where those and the strides are, its base, its type and its flags.
_FIELDS = slice(object.__basicsize__, object.__basicsize__ + 52)
_WORD = 8


class ArrayContent:
    """What an array held. Small ones are compared with a copy; of large ones the kernel keeps account, if it can.

    Args:
        gone: whether its memory may be another's by now: it is not read then.
    """

    def __init__(self, array: Any, gone: Callable[[], bool] | None = None) -> None:
        self._array = array
        self._gone = gone
        self._pages = self._whole_pages()
        # An object's place means that object, as long as that lives.
        self._held = array.ravel().tolist() if array.dtype.hasobject else None
        self._form = _form(array)
        self._pieces: list[tuple[int, int]] = []  # that are compared: the array's own fields, and what they point to
        self._memory = Held()
        self._hashes: list[int] | bytes | None = None
        self._read()

    def lies_in(self, places: list[tuple[int, int]]) -> bool:
        """Whether its content begins in one of these pieces of memory."""
        start = _address(self._array)
        return any(first <= start < last for first, last in places)

    def in_fork(self) -> None:
        """From now on for this forked process, of whose writes the kernel keeps another account."""
        if self._pages is not None and not (self._gone and self._gone()):
            self._pages = self._whole_pages()
            self._read()

    def places(self) -> Places | None:
        """Of the words that say by themselves whether it is the same; None where they do not, or are too many."""
        if self._pages is not None or self._hashes is not None or self._array.nbytes > _SMALL or not _lies_as_known():
            return None
        if self._gone is not None:
            return None
        return word_places.of_array(self._array, self._pieces[1:])

    def changed(self) -> bool:
        if self._gone is not None and self._gone():
            return True
        if self._pages is not None and self._pages.written():
            return True
        if _lies_as_known():
            if not self._memory.same():
                return True
        elif _form(self._array) != self._form:
            return True
        return self._hashes is not None and self._hashed() != self._hashes

    def _whole_pages(self) -> Pages | None:
        array = self._array
        if array.nbytes >= _LARGE and not array.dtype.hasobject and array.flags.forc:
            return Pages.of(_address(array), array.nbytes)
        return None

    def _read(self) -> None:
        """All of its bytes; of those that the kernel sees the ends alone; of many a hash of each part, in order."""
        array, self._pieces, self._hashes = self._array, [], None
        if not _lies_as_known():
            self._hashes = self._hashed()
            return
        self._hold(id(array) + _FIELDS.start, id(array) + _FIELDS.stop)
        if array.ndim:  # strides follow the shape
            self._hold(shape := _shape_at(array), shape + 2 * array.ndim * _WORD)
        start, end = _address(array), _address(array) + array.nbytes
        if self._pages is not None:
            self._hold(start, self._pages.start)
            self._hold(self._pages.end, end)
        elif array.flags.forc and array.nbytes < _LARGE:
            self._hold(start, end)
        else:
            self._hashes = self._hashed()
        self._memory = Held(*((start, ctypes.string_at(start, end - start)) for start, end in self._pieces))

    def _hold(self, start: int, end: int) -> None:
        if end > start:
            self._pieces.append((start, end))

    def _hashed(self) -> list[int] | bytes:
        """
        Python's hash of bytes (SipHash) sees where each byte stands, as a sum does not: rows that only changed places
        are another content. It has a key of this process, which forked ones share.
        """
        array = self._array
        if array.dtype.hasobject:
            return np.ascontiguousarray(array).tobytes()
        flat = array.reshape(-1, order="A") if array.flags.forc else np.ascontiguousarray(array).reshape(-1)
        flat = flat.view(np.uint8)
        return [hash(flat[start : start + _PART].tobytes()) for start in range(0, len(flat), _PART)]


class Contents:
    """What arrays held that nobody else has, so that their forms stay: all are looked at together.

    An engine asks before each call, when the processor's caches hold nothing of a model: of an encoder's 76 tensors it
    took 320 µs to ask one after the other, and 100 to ask for all. It takes some 5 where the process has had no page
    fault since: then nothing was written to the pages in which they lie.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._pages: list[Pages] = []
        self._others: list[ArrayContent] = []
        pieces: list[tuple[int, int]] = []
        private = private_memory(files=True)
        for array in arrays:
            start, end = _address(array), _address(array) + array.nbytes
            pages = Pages.of(start, array.nbytes, private) if array.nbytes >= _LARGE else None
            if pages is not None:
                self._pages.append(pages)
                pieces += (start, pages.start), (pages.end, end)
            elif array.nbytes < _LARGE:
                pieces.append((start, end))
            else:
                self._others.append(ArrayContent(array))
        self._small = [
            _Together(each, private) for each in _on_the_same_pages([each for each in pieces if each[0] < each[1]])
        ]
        self._always = [each for each in self._small if each.pages is None]  # of which no fault tells
        watched = [*self._pages, *(each.pages for each in self._small if each.pages is not None)]
        self._files = {each.file: written_at(each.file) for each in watched if each.file}
        self._faults: tuple[int, int] | None = None  # that the process had when all was looked at
        self._in_vain = 0

    def changed(self) -> bool:
        if any(not each.same() for each in self._always) or any(each.changed() for each in self._others):
            return True
        if any(written_at(file) != before for file, before in self._files.items()):
            return True
        faults = faults_so_far() if self._in_vain < _IN_VAIN else None
        if faults is not None and faults == self._faults:
            self._in_vain = 0
            return False
        self._faults = None
        told = [each for each in self._small if each.pages is not None]
        changed = any_written(self._pages) or any(each.changed(faults is not None) for each in told)
        self._always = [each for each in self._small if each.pages is None]
        if changed:
            return True
        self._in_vain = (self._in_vain + 1) % _AGAIN
        self._faults = faults
        return False


class _Together:
    """Pieces of memory on pages that follow each other, and what they hold. Others may write beside them.

    Attributes:
        pages: whose first write is a page fault; None where there is no such account, or others write there often.
    """

    def __init__(self, pieces: list[tuple[int, int]], private: list[Private]) -> None:
        start, end = pieces[0][0], pieces[-1][1]
        self.pages = Pages.around(start, end - start, private)
        self._held = Held(*((start, ctypes.string_at(start, end - start)) for start, end in pieces))
        self._beside = 0

    def same(self) -> bool:
        return self._held.same()

    def changed(self, by_faults: bool) -> bool:
        """Whether they do not hold what they held.

        Args:
            by_faults: nobody asks again until there is another fault: its pages are asked, which there are.
        """
        if by_faults:
            assert self.pages is not None
            if not self.pages.written():
                self._beside = 0
                return False
            self.pages.forget()  # before they are looked at: what is written meanwhile is another fault
            self._beside += 1
        if (changed := not self.same()) or self._beside > _BESIDE:
            self.pages = None
        return changed


def _on_the_same_pages(pieces: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    found: list[list[tuple[int, int]]] = []
    for start, end in sorted(pieces):
        if found and start // mmap.PAGESIZE <= -(-found[-1][-1][1] // mmap.PAGESIZE):
            found[-1].append((start, end))
        else:
            found.append([(start, end)])
    return found


def _form(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides, _address(array)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _shape_at(array: Any) -> int:
    return ctypes.c_size_t.from_address(id(array) + _FIELDS.start + 2 * _WORD).value


@cache
def _lies_as_known() -> bool:
    """Whether arrays have their fields where they are looked at."""
    import platform

    if platform.python_implementation() != "CPython" or ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return False
    known = np.zeros((3, 5, 7), np.int16)[:, 1:4]
    start = id(known) + _FIELDS.start
    of_content, dimensions = (ctypes.c_size_t.from_address(start).value, ctypes.c_int.from_address(start + _WORD).value)
    if of_content != _address(known) or dimensions != known.ndim:
        return False
    return tuple((ctypes.c_ssize_t * 6).from_address(_shape_at(known))) == known.shape + known.strides
