"""Tables of codes: where a sample's numbers take few values, as those of pictures do, each number is kept as
one byte, and each value once, in a palette.

Values are told apart by their bits, so that what is read is what was written: zeros of both signs, each NaN.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overdrive.datacache.palettes import MOST_VALUES, Palette, channels_of, size_of_palette, width_of
from overdrive.datacache.table import Bytes, Rows, Table, shared_bytes
from overdrive.forks.layout import Layout, Leaf, Unfit

# The numbers of those leaves of a layout whose rows are codes.
Coded = tuple[int, ...]

_SMALLEST = 1024  # bytes of a leaf that is worth it
_SEEN = 8 * MOST_VALUES  # numbers of a channel, that must have been looked at


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


def worth_coding(table: Table) -> Coded:
    """Which leaves may be kept as codes, as far as this table of tried samples shows."""
    return tuple(
        number
        for number, (leaf, held) in enumerate(zip(table.layout.leaves, table.leaves, strict=True))
        if _can_be_coded(leaf) and leaf.bytes >= _SMALLEST and _has_few_values(leaf, held)
    )


def _has_few_values(leaf: Leaf, held: Bytes) -> bool:
    if len(held) * leaf.bytes < _SEEN * channels_of(leaf) * width_of(leaf):
        return False
    palette = Palette(leaf, np.zeros(size_of_palette(leaf), dtype=np.uint8), lock=-1)
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
    return found + [(f"{number}.palette", 1, size_of_palette(layout.leaves[number])) for number in coded]


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
    return leaf.plain and width_of(leaf) in (4, 8)


def _in_memory() -> int:
    """A file to lock."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("overdrive")
    file, name = tempfile.mkstemp()
    os.unlink(name)
    return file
