"""Ragged tables, whose rows have different lengths: in memory, or one after another in a file, with an index."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.buffers import Buffers
from overdrive.datacache.disk import close_with, mapped, new_file
from overdrive.datacache.table import Bytes, Rows, Table, bytes_of, fence, shared_bytes
from overdrive.forks.layout import Layout

# How many bytes of a row, which comes with room for the longest one, are to be written. A row's own beginning tells:
# what shapes its values have stands there too.
Filled = Callable[[Bytes], int]

ROWS, INDEX = "rows.raw", "index.raw"
_BEGIN, _LENGTH = 0, 1
_ENTRY = 16  # bytes of the index for a row


class RaggedTable(Table):
    """A ragged table in memory: the rest of a row is not touched, and takes no memory."""

    def __init__(
        self, layout: Layout, count: int, leaves: list[Bytes], present: NDArray[np.bool_], filled: Filled
    ) -> None:
        super().__init__(layout, count, leaves, present)
        self._filled = filled

    @classmethod
    def with_room(cls, layout: Layout, count: int, filled: Filled) -> RaggedTable:
        leaves = [_shared_room(count * leaf.bytes).reshape(count, leaf.bytes) for leaf in layout.leaves]
        return cls(layout, count, leaves, shared_bytes(count).view(np.bool_), filled)

    def write(self, rows: Rows, batch: Any) -> bool:
        if not self.layout.leaves[0].fits(batch) or len(batch) != len(rows):
            return False
        if self.writable:
            for row, data in zip(rows.tolist(), bytes_of(batch), strict=True):
                self.put(row, data[: self._filled(data)])
            self.count_present()
        return True


class FiledTable(RaggedTable):
    """A ragged table in a file, each row where it was appended, with an index of where it begins and how long it is.

    Rows are written with plain calls, not through mapped memory, since nobody knows beforehand how much room they
    take: a full disk is then an error, which leaves a row out, and no signal that ends the process. Processes that
    were forked from this one append too.
    """

    def __init__(
        self,
        layout: Layout,
        count: int,
        index: NDArray[np.int64],
        present: NDArray[np.bool_],
        filled: Filled,
        file: int,
        limit: int,
    ) -> None:
        """
        Args:
            index: count × 2.
            file: open, and closed with this table.
            limit: bytes that all rows may take together; 0 where they are only read.
        """
        super().__init__(layout, count, [], present, filled)
        self.writable = limit > 0
        self._index = index
        self._file = file
        self._limit = limit
        self._appending = (-1, -1, threading.Lock())  # process, file, and who writes to it
        self._whole: Bytes | None = None
        close_with(self, file)

    @classmethod
    def begin(
        cls, place: Path, layout: Layout, count: int, present: NDArray[np.bool_], filled: Filled, limit: int
    ) -> FiledTable:
        """An empty one.

        Raises:
            OSError: there is no room for its index.
        """
        index = new_file(place / INDEX, count * _ENTRY).view(np.int64).reshape(count, 2)
        file = os.open(place / ROWS, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return cls(layout, count, index, present, filled, file, max(1, limit))

    @classmethod
    def join(
        cls, place: Path, layout: Layout, count: int, present: NDArray[np.bool_], filled: Filled, limit: int
    ) -> FiledTable:
        """What another process has begun; to be read only where `limit` is 0.

        Raises:
            OSError, ValueError: it is not there any more.
        """
        index = mapped(place / INDEX, count, _ENTRY, writable=limit > 0).view(np.int64)
        file = os.open(place / ROWS, os.O_RDONLY | os.O_CLOEXEC)
        return cls(layout, count, index, present, filled, file, limit)

    @classmethod
    def stored(cls, place: Path, layout: Layout, count: int) -> FiledTable:
        """A whole one.

        Raises:
            OSError, ValueError: it is damaged.
        """
        table = cls.join(place, layout, count, np.ones(count, dtype=np.bool_), len, 0)
        begins, lengths = table._index[:, _BEGIN], table._index[:, _LENGTH]
        size = os.fstat(table._file).st_size
        sound = (begins >= 0) & (lengths >= 1) & (lengths <= layout.leaves[0].bytes) & (begins <= size - lengths)
        if not sound.all():
            raise ValueError(f"{place / INDEX} names rows that are not there")
        return table

    def row(self, number: int) -> Bytes:
        self.renew()
        begin, length = self._index[number].tolist()
        if self.complete:
            return self._mapped()[begin : begin + length]
        return np.frombuffer(os.pread(self._file, length, begin), dtype=np.uint8)

    def put(self, row: int, data: Bytes) -> None:
        """Append a row; where the disk is full or has had its share, it is left out."""
        if not self.writable or self.present[row]:  # its index is not to change any more
            return
        self.renew()
        with contextlib.suppress(OSError):
            file, lock = self._to_append()
            with lock:
                if os.fstat(file).st_size + len(data) > self._limit or os.write(file, data.tobytes()) != len(data):
                    return
                # Each process has opened the file for itself, so its place is behind what it has written itself.
                self._index[row] = os.lseek(file, 0, os.SEEK_CUR) - len(data), len(data)
            fence()
            self.present[row] = True

    def gather(self, rows: Rows, buffers: Buffers | None = None) -> Any:
        """Rows with zeros behind them, as they are fetched."""
        import torch

        batch = torch.zeros((len(rows), *self.layout.leaves[0].sizes), dtype=torch.uint8)
        for place, number in zip(bytes_of(batch), rows.tolist(), strict=True):
            row = self.row(number)
            place[: len(row)] = row
        return batch

    def contents(self) -> dict[str, Bytes]:
        return {ROWS: self._mapped(), INDEX: self._index.view(np.uint8).reshape(-1)}

    def _mapped(self) -> Bytes:
        """The file as it is when all is there."""
        if self._whole is None:
            self._whole = np.frombuffer(mmap.mmap(self._file, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        return self._whole

    def _to_append(self) -> tuple[int, threading.Lock]:
        process, file, lock = self._appending
        if process != os.getpid():
            # By its number: the file has another name, or none, once it is finished.
            file = os.open(f"/proc/self/fd/{self._file}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            close_with(self, file)
            lock = threading.Lock()  # the other one may have been held by a thread that was not forked
            self._appending = (os.getpid(), file, lock)
        return file, lock


def _shared_room(size: int) -> Bytes:
    """Anonymous memory that is shared with forked children, of which only what is written to will ever be there: it
    may be more than the machine has."""
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, max(1, size), flags=flags), dtype=np.uint8)[:size]
