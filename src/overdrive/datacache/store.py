"""Tables on disk: a folder a key, raw files that are mapped into memory, and a manifest. Never a pickle.

A table is written under another name and renamed when it is whole, so what stands under a key is
complete; that it is unharmed is checked each time it is opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.changes.files import stats_of
from overdrive.core.atomic_file import write_atomically
from overdrive.datacache.codes import Coded, coded_from_json, files_of, table_of
from overdrive.datacache.disk import (
    PARTIAL,
    lies_in_memory,
    locked,
    mapped,
    new_place,
    read_note,
    size_of,
    sums,
    used_at,
)
from overdrive.datacache.early import NOTE, EarlyCheck, with_program, without_program
from overdrive.datacache.in_use import InUse, used_elsewhere
from overdrive.datacache.manifest import FORMAT, read
from overdrive.datacache.partial_table import PartialTable, is_left, takes_part
from overdrive.datacache.ragged import FiledTable, Filled
from overdrive.datacache.table import Bytes, Table
from overdrive.forks.layout import Layout

_SHARE_OF_FREE_DISK = 0.2


class StoreUnavailable(Exception):
    """The cache folder cannot be used; the message says why."""


class Store:
    """The tables under one folder, which is the user's own and nobody else's to read."""

    def __init__(self, folder: Path, packed: bool = False, early: EarlyCheck | None = None) -> None:
        """
        Args:
            packed: by `overdrive pack`; nothing is made, changed or removed there.
            early: what has begun to check some tables already.

        Raises:
            StoreUnavailable: it cannot be made, is not there, or belongs to somebody else.
        """
        self.folder = folder
        self.packed = packed
        self._early = early
        try:
            if not packed:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise StoreUnavailable(f"{folder} belongs to another user, or others may write to it")
        except OSError as error:
            raise StoreUnavailable(f"{folder} cannot be used ({error.strerror})") from None
        if not packed:
            self._clean()

    def open(self, key: str) -> Table | None:
        """The table under this key; None where there is none. A damaged or outdated one is removed."""
        place = self.folder / key
        if not place.exists():
            return None
        try:
            table = _opened(place, self._early, self.packed)
        except Exception:  # whatever stands there, it is not one of ours any more
            table = None
        if table is None:
            self.remove(key)
        elif not self.packed:
            with contextlib.suppress(OSError):
                os.utime(place)  # the least recently used go first
        return table

    def remove(self, key: str) -> None:
        """Take it away at once, so that nobody opens it half removed. What another machine uses stays for it under
        another name; it goes when a store is opened after that has ended."""
        if not self.packed:
            _take_away(self.folder / key)

    def note(self, key: str, name: str, content: Any) -> bool:
        """Write something short (JSON) beside a table; it goes when the table goes. False where there is no table."""
        place = self.folder / key
        text = json.dumps(content)
        try:
            if not (place / "manifest.json").is_file():
                return False
            write_atomically(place / f"{name}.json", json.dumps({"text": text, "sum": zlib.crc32(text.encode())}))
        except OSError:
            return False
        return True

    def noted(self, name: str) -> Any:
        """What was written down under this name, beside any table; None where there is nothing, or it is damaged."""
        notes = map(read_note, self.folder.glob(f"*/{name}.json"))
        return next((note for note in notes if note is not None), None)

    def remember_user(self, key: str, program: str) -> None:
        """Note beside the table that this program uses it: its next run checks it early."""
        names = with_program(read_note(self.folder / key / f"{NOTE}.json"), program)
        if names and not self.packed:
            self.note(key, NOTE, names)

    def forget_unused(self) -> None:
        """Tables that were checked early for this program and that it did not open: it is another program by now."""
        if self._early is None:
            return
        for place in self._early.give_up_rest():
            self.note(place.name, NOTE, without_program(read_note(place / f"{NOTE}.json"), self._early.program))

    def partial(
        self,
        key: str,
        layout: Layout,
        count: int,
        size: int = 0,
        filled: Filled | None = None,
        coded: Coded = (),
    ) -> PartialTable | None:
        """A new table to be filled; None where the disk has no room for it, or another process fills it.

        Args:
            size: bytes of all rows, where they are of different lengths; about so many.
            filled: how long such a row is.
            coded: leaves that are kept as codes.
        """
        if filled is None:
            size = sum(rows * each for _, rows, each in files_of(layout, count, coded))
        if size > self._allowed() or self.busy(key):
            return None
        self._evict(size, besides=key)
        left = int(self._allowed() - self._used())
        if size > left:
            return None
        try:
            return PartialTable.begin(self.folder, key, layout, count, filled, left, coded)
        except OSError:
            return None

    def join(self, key: str, filled: Filled | None = None) -> PartialTable | None:
        """The table that another process of this machine is filling; None where there is none."""
        try:
            return PartialTable.join(self.folder, key, filled) if self.busy(key) else None
        except (OSError, ValueError, LookupError, TypeError):  # it has just been finished, or given up
            return None

    def take_over(self, key: str, filled: Filled | None = None) -> PartialTable | None:
        """The table that processes which are gone have left unfinished, None where there is none. What nobody can go on
        with is removed."""
        place = self.folder / f"{PARTIAL}{key}"
        if takes_part(place):
            return None
        try:
            return PartialTable.take_over(self.folder, key, filled)
        except (OSError, ValueError, LookupError, TypeError):
            _remove_partial(place, left_too=True)
            return None

    def room(self) -> int:
        """Bytes of disk that a table may take, once others have gone for it."""
        return 0 if lies_in_memory(self.folder) else int(self._allowed())

    def busy(self, key: str) -> bool:
        """Whether a living process fills this table. What dead ones left is removed, if nobody may go on with it."""
        place = self.folder / f"{PARTIAL}{key}"
        return takes_part(place) or _remove_partial(place)

    def _used(self) -> int:
        return sum(size_of(place) for place in self._tables())

    def _allowed(self) -> float:
        return _SHARE_OF_FREE_DISK * (shutil.disk_usage(self.folder).free + self._used())

    def _tables(self) -> list[Path]:
        with contextlib.suppress(OSError):
            places = [each for each in self.folder.iterdir() if not each.name.startswith(PARTIAL)]
            return sorted((each for each in places if (each / "manifest.json").is_file()), key=used_at)
        return []

    def _evict(self, needed: int, besides: str) -> None:
        """Make room: what was left unfinished goes first, then the longest unused. What is in use here stays readable
        until it is let go; what is in use on another machine stays."""
        for place in self.folder.glob(PARTIAL + "*"):
            if needed <= self._allowed() - self._used():
                return
            if place.name != PARTIAL + besides and is_left(place) and not used_elsewhere(place):
                _remove_partial(place, left_too=True)
        for place in self._tables():
            if needed <= self._allowed() - self._used():
                return
            if place.name != besides and not used_elsewhere(place):
                self.remove(place.name)

    def _clean(self) -> None:
        """Remove the partial tables of processes that are gone: those whose lock is free, and that nobody may go on
        with."""
        for place in self.folder.glob(PARTIAL + "*"):
            if not takes_part(place) and not used_elsewhere(place):
                _remove_partial(place)


def _remove_partial(place: Path, left_too: bool = False) -> bool:
    """Remove a partial table that no living process fills; whether one does.

    Args:
        left_too: also where another process might go on with it.
    """
    try:
        with locked(place / "lock"):
            if left_too or not is_left(place):
                _take_away(place)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is none
    return False


def _take_away(place: Path) -> None:
    gone = new_place(place.parent)
    with contextlib.suppress(OSError):
        os.rename(place, gone)
        if not used_elsewhere(gone):  # asked now that nobody can come upon it any more
            shutil.rmtree(gone, ignore_errors=True)


def _opened(place: Path, early: EarlyCheck | None, packed: bool) -> Table | None:
    in_use = None if packed else InUse(place)
    text = (place / "manifest.json").read_text()
    manifest = read(text)
    if manifest["format"] != FORMAT:
        return None
    layout, count = Layout.from_json(manifest["layout"]), int(manifest["count"])
    depends = [(str(path), int(size), int(modified)) for path, size, modified in manifest["depends"]]
    if stats_of([path for path, _, _ in depends]) != depends:
        return None
    known = early.take(place, text) if early else {}

    def rows_of(name: str, rows: int, size: int) -> Bytes:
        data = known[name].data if name in known else None
        return mapped(place / name, rows, size) if data is None else data.reshape(rows, size)

    if manifest.get("ragged"):
        table: Table = FiledTable.stored(place, layout, count)
    else:
        coded = coded_from_json(layout, manifest.get("coded", ()))
        parts = [rows_of(*each) for each in files_of(layout, count, coded)]
        table = table_of(layout, count, parts, np.ones(count, dtype=np.bool_), coded, place)
    for (name, held), entry in zip(table.contents().items(), manifest["files"], strict=True):
        if name != entry["name"] or entry["bytes"] != held.nbytes:
            return None
        if (known[name].sums if name in known else sums(held)) != entry["sums"]:
            return None
    table.in_use = in_use
    table.made_from = [path for path, _, _ in depends]
    return table
