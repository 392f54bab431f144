"""Tables of codes: where a sample's numbers take few values, as those of pictures do, each number is kept as
one byte, and each value once, in a palette.

Values are told apart by their bits, so that what is read is what was written: zeros of both signs, each NaN. Palettes
grow as samples come, for all who fill the table: whoever finds a new value adds it behind the others, under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.table import Bytes, Rows, Table, fence, shared_bytes
from overdrive.forks.layout import Layout, Leaf, Unfit

# The numbers of those leaves of a layout whose rows are codes.
Coded = tuple[int, ...]
Codes = NDArray[np.uint8]

_MOST = 256  # values that a byte tells apart
_MOST_CHANNELS = 16  # that have a palette each
_SMALLEST = 1024  # bytes of a leaf that is worth it
_SEEN = 8 * _MOST  # numbers of a channel, that must have been looked at
_PATIENCE = 2.0  # seconds for the lock, which is held for some microseconds
_SLOT_BITS = 16
_AT_ONCE = 1 << 14  # numbers, for which the processor's caches have room
_MOST_TRIES = 200  # one in two succeeds


class CodedTable(Table):
    """A table of which some leaves are codes. `palettes` belong to `coded`, one after another."""

    def __init__(
        self,
        layout: Layout,
        count: int,
        leaves: Sequence[Bytes],
        present: NDArray[np.bool_],
        coded: Coded,
        palettes: Sequence[Palette],
    ) -> None:
        super().__init__(layout, count, leaves, present)
        self.coded = coded
        self._palettes = dict(zip(coded, palettes, strict=True))

    @classmethod
    def with_codes(cls, layout: Layout, count: int, coded: Coded) -> CodedTable:
        """Empty, in memory that forked children can write into as well."""
        rows = [shared_bytes(lines * size).reshape(lines, size) for _, lines, size in files_of(layout, count, coded)]
        locks = [_in_memory() for _ in coded]
        return _coded_table(layout, count, rows, shared_bytes(count).view(np.bool_), coded, locks)

    def contents(self) -> dict[str, Bytes]:
        held = [*self.leaves, *(palette.block for palette in self._palettes.values())]
        names = [name for name, _, _ in files_of(self.layout, self.count, self.coded)]
        return {name: each.reshape(-1) for name, each in zip(names, held, strict=True)}

    def part(self, number: int, first: int, end: int) -> Bytes:
        if number not in self._palettes:
            return super().part(number, first, end)
        found = np.empty((min(end, self.count) - first, self.layout.leaves[number].bytes), dtype=np.uint8)
        self._palettes[number].decode(self.leaves[number], np.arange(first, first + len(found)), found)
        return found

    def _keep(self, number: int, rows: Rows, data: Bytes) -> None:
        palette = self._palettes.get(number)
        super()._keep(number, rows, data if palette is None else palette.encode(data))

    def _read(self, number: int, rows: Rows, into: Bytes) -> None:
        if number in self._palettes:
            self._palettes[number].decode(self.leaves[number], rows, into)
        else:
            super()._read(number, rows, into)


class Palette:
    """The values of a leaf, for each of its channels in the order in which they were met."""

    def __init__(self, leaf: Leaf, block: Bytes, lock: int) -> None:
        """
        Args:
            block: of `size_of_palette` bytes, shared by all who fill the table.
            lock: a file that is open for writing, and closed with this one; -1 where no other process writes.
        """
        self.block = block
        channels, width = _channels(leaf), _width(leaf)
        bits, whole = np.dtype(f"u{width}"), block.reshape(-1)
        self._used = whole[: 8 * channels].view(np.int64)
        self._values = whole[8 * channels :].view(bits).reshape(channels, _MOST)
        self._finders: list[_Finder | None] = [None] * channels
        self._lock = lock
        self._threads = threading.Lock()
        if lock >= 0:
            weakref.finalize(self, _close, lock)

    def encode(self, data: Bytes) -> Codes:
        """
        Args:
            data: samples × bytes.

        Raises:
            Unfit: there are too many values.
        """
        channels = len(self._values)
        values = np.ascontiguousarray(data).view(self._values.dtype).reshape(len(data), channels, -1)
        codes = np.empty(values.shape, dtype=np.uint8)
        step = max(1, _AT_ONCE // values[0].size)
        for first in range(0, len(values), step):
            some = slice(first, first + step)
            for channel in range(channels):
                codes[some, channel] = self._codes(channel, np.ascontiguousarray(values[some, channel]))
        return codes.reshape(len(data), -1)

    def decode(self, held: Codes, rows: Rows, into: Bytes) -> None:
        """One row after another: numpy makes numbers of 64 bits of codes, which then stay in the processor's cache."""
        channels = len(self._values)
        values = into.view(self._values.dtype).reshape(len(rows), channels, -1)
        for place, row in zip(values, rows.tolist(), strict=True):
            codes = held[row].reshape(channels, -1)
            for channel in range(channels):
                np.take(self._values[channel], codes[channel], out=place[channel], mode="clip")

    def _codes(self, channel: int, values: NDArray[Any]) -> Codes:
        for _ in range(2):
            used = int(self._used[channel])
            fence()
            finder = self._finders[channel]
            if used and (finder is None or finder.count != used):
                finder = self._finders[channel] = _Finder(self._values[channel][:used])
            if finder is None:
                self._add(channel, np.unique(values))
                continue
            codes = finder.codes(values)
            strange = np.take(self._values[channel], codes, mode="clip") != values
            if not strange.any():
                return codes
            self._add(channel, np.unique(values[strange]))
        raise Unfit("codes of its samples' values were not found again")

    def _add(self, channel: int, values: NDArray[Any]) -> None:
        with self._held():
            used = int(self._used[channel])
            fence()
            fresh = values[~np.isin(values, self._values[channel][:used])]  # others may have been first
            if used + len(fresh) > _MOST:
                raise Unfit(f"its samples have more than the {_MOST} values that codes can stand for")
            self._values[channel][used : used + len(fresh)] = fresh
            fence()
            self._used[channel] = used + len(fresh)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """One thread of one process at a time. A lock of the file is let go when its process dies."""
        limit = time.monotonic() + _PATIENCE
        if not self._threads.acquire(timeout=_PATIENCE):  # forked while another thread had it, perhaps
            raise Unfit("the palette of its samples could not be had for a change")
        try:
            while self._lock >= 0:
                try:
                    fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > limit:
                        raise Unfit("the palette of its samples could not be had for a change") from None
                    time.sleep(0.0005)
            try:
                yield
            finally:
                if self._lock >= 0:
                    fcntl.lockf(self._lock, fcntl.LOCK_UN)
        finally:
            self._threads.release()


class _Finder:
    """Finds values' codes: by a product's upper bits, which are others for each of these values. For 150,000 numbers
    that is several times faster than to search in order."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.count = len(values)
        width = 8 * values.itemsize
        self._shift = values.dtype.type(width - _SLOT_BITS)
        draw = random.Random(width)
        for _ in range(_MOST_TRIES):
            self._factor = values.dtype.type(draw.getrandbits(width) | 1)
            slots = self._slots(values)
            if len(np.unique(slots)) == self.count:
                break
        else:
            raise Unfit("no codes were found for its samples' values")
        self._code = np.zeros(1 << _SLOT_BITS, dtype=np.uint8)
        self._code[slots] = np.arange(self.count)

    def codes(self, values: NDArray[Any]) -> Codes:
        """Of values that are none of these, some code."""
        return np.take(self._code, self._slots(values), mode="clip")

    def _slots(self, values: NDArray[Any]) -> NDArray[Any]:
        slots: NDArray[Any] = (values * self._factor) >> self._shift
        return slots


def worth_coding(table: Table) -> Coded:
    """Which leaves may be kept as codes, as far as this table of tried samples shows."""
    return tuple(
        number
        for number, (leaf, held) in enumerate(zip(table.layout.leaves, table.leaves, strict=True))
        if _can_be_coded(leaf) and leaf.bytes >= _SMALLEST and _has_few_values(leaf, held)
    )


def _has_few_values(leaf: Leaf, held: Bytes) -> bool:
    if len(held) * leaf.bytes < _SEEN * _channels(leaf) * _width(leaf):
        return False
    palette = Palette(leaf, np.zeros(_size_of_palette(leaf), dtype=np.uint8), lock=-1)
    try:
        for row in held:
            palette.encode(row[np.newaxis])
    except Unfit:
        return False
    return True


def bytes_as_codes(layout: Layout, count: int, coded: Coded) -> int:
    """What such a table takes."""
    return sum(rows * size for _, rows, size in files_of(layout, count, coded))


def files_of(layout: Layout, count: int, coded: Coded) -> list[tuple[str, int, int]]:
    """The parts of a table: the name of the file that each lies in on disk, and how many rows of how many bytes it is.

    The codes have another name than rows as they are, so that who knows of no codes does not take one for the other.
    """
    found = []
    for number, leaf in enumerate(layout.leaves):
        if number in coded:
            found.append((f"{number}.codes", count, prod(leaf.sizes)))
        else:
            found.append((f"{number}.raw", count, leaf.bytes))
    return found + [(f"{number}.palette", 1, _size_of_palette(layout.leaves[number])) for number in coded]


def table_of(
    layout: Layout, count: int, parts: Sequence[Bytes], present: NDArray[np.bool_], coded: Coded, place: Path
) -> Table:
    """A table of the parts that `files_of` names, which lie in the folder `place`.

    Raises:
        OSError: they are not there any more.
    """
    if not coded:
        return Table(layout, count, parts, present)
    writable = all(part.flags.writeable for part in parts)
    locks = [os.open(place / f"{k}.palette", os.O_RDWR | os.O_CLOEXEC) if writable else -1 for k in coded]
    return _coded_table(layout, count, parts, present, coded, locks)


def coded_from_json(layout: Layout, data: Any) -> Coded:
    """
    Raises:
        ValueError: these are no leaves that can be codes.
    """
    coded = tuple(data)
    if any(type(each) is not int or not 0 <= each < len(layout.leaves) for each in coded):
        raise ValueError(f"no leaves are {data}")
    if sorted(set(coded)) != list(coded) or not all(_can_be_coded(layout.leaves[each]) for each in coded):
        raise ValueError(f"no codes can stand for the leaves {data}")
    return coded


def _coded_table(
    layout: Layout, count: int, parts: Sequence[Bytes], present: NDArray[np.bool_], coded: Coded, locks: list[int]
) -> CodedTable:
    leaves, blocks = parts[: len(layout.leaves)], parts[len(layout.leaves) :]
    palettes = [Palette(layout.leaves[k], block, lock) for k, block, lock in zip(coded, blocks, locks, strict=True)]
    return CodedTable(layout, count, leaves, present, coded, palettes)


def _can_be_coded(leaf: Leaf) -> bool:
    return leaf.plain and _width(leaf) in (4, 8)


def _width(leaf: Leaf) -> int:
    """Bytes of a number."""
    return leaf.bytes // prod(leaf.sizes)


def _channels(leaf: Leaf) -> int:
    """How many parts of a sample have a palette each: those of a picture, which are normalised each in its own way."""
    return leaf.sizes[0] if len(leaf.sizes) > 2 and leaf.sizes[0] <= _MOST_CHANNELS else 1


def _size_of_palette(leaf: Leaf) -> int:
    return _channels(leaf) * (8 + _MOST * _width(leaf))


def _in_memory() -> int:
    """A file to lock."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("overdrive")
    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file


def _close(file: int) -> None:
    with contextlib.suppress(OSError):
        os.close(file)
