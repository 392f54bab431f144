"""Palettes: the values that a leaf's numbers take, each of which a byte stands for.

They grow as samples come, for all who fill the table: whoever finds a new value adds it behind the others, under a
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import random
import threading
import time
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.disk import close_with
from overdrive.datacache.table import Bytes, Rows, fence
from overdrive.forks.layout import Leaf, Unfit

Codes = NDArray[np.uint8]

MOST_VALUES = 256  # that a byte tells apart
_MOST_CHANNELS = 16  # that have a palette each
_PATIENCE = 2.0  # seconds for the lock, which is held for some microseconds
_SLOT_BITS = 16
_AT_ONCE = 1 << 14  # numbers, for which the processor's caches have room
_MOST_TRIES = 200  # one in two succeeds


class Palette:
    """The values of a leaf, for each of its channels in the order in which they were met."""

    def __init__(self, leaf: Leaf, block: Bytes, lock: int) -> None:
        """
        Args:
            block: of `size_of_palette` bytes, shared by all who fill the table.
            lock: a file that is open for writing, and closed with this one; -1 where no other process writes.
        """
        self.block = block
        channels, width = channels_of(leaf), width_of(leaf)
        bits, whole = np.dtype(f"u{width}"), block.reshape(-1)
        self._used = whole[: 8 * channels].view(np.int64)
        self._values = whole[8 * channels :].view(bits).reshape(channels, MOST_VALUES)
        self._finders: list[_Finder | None] = [None] * channels
        self._lock = lock
        self._threads = threading.Lock()
        if lock >= 0:
            close_with(self, lock)

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
            if used + len(fresh) > MOST_VALUES:
                raise Unfit(f"its samples have more than the {MOST_VALUES} values that codes can stand for")
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


def width_of(leaf: Leaf) -> int:
    """Bytes of a number."""
    return leaf.bytes // prod(leaf.sizes)


def channels_of(leaf: Leaf) -> int:
    """How many parts of a sample have a palette each: those of a picture, which are normalised each in its own way."""
    return leaf.sizes[0] if len(leaf.sizes) > 2 and leaf.sizes[0] <= _MOST_CHANNELS else 1


def size_of_palette(leaf: Leaf) -> int:
    return channels_of(leaf) * (8 + MOST_VALUES * width_of(leaf))
