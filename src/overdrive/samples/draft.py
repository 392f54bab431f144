"""A table on disk that is being filled: found by other processes under its key, and put into place when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np

from overdrive.samples.disk import DRAFT, new_file, new_place, sums
from overdrive.samples.files import stats_of
from overdrive.samples.layout import Layout
from overdrive.samples.table import Table
from overdrive.samples.uneven import FiledTable, Filled

FORMAT = 1


class Draft:
    """
    Args:
        folder: of the store.
        filled: where rows are of different lengths, how long one is.
        limit: bytes that such rows may take together.

    Raises:
        OSError: there is no room, or another process fills this table.
    """

    def __init__(
        self, folder: Path, key: str, layout: Layout, count: int, filled: Filled | None = None, limit: int = 0
    ) -> None:
        self._folder = folder
        self._key = key
        self._uneven = filled is not None
        self._began = time.time_ns()
        self.place = new_place(folder)
        self.place.mkdir(mode=0o700)
        self._lock = os.open(self.place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            present = new_file(self.place / "present", count).view(np.bool_)
            if filled is not None:
                self.table: Table = FiledTable.begin(self.place, layout, count, present, filled, limit)
            else:
                leaves = [
                    new_file(self.place / f"{number}.raw", count * leaf.bytes).reshape(count, leaf.bytes)
                    for number, leaf in enumerate(layout.leaves)
                ]
                self.table = Table(layout, count, leaves, present)
            told = {"layout": layout.to_json(), "count": count, "uneven": self._uneven}
            (self.place / "layout.json").write_text(json.dumps(told))
            self._claim(folder / f"{DRAFT}{key}")
        except OSError:
            self.abandon()
            raise

    def _claim(self, name: Path) -> None:
        """Take the name under which other processes find it. Only one can: the others' folder is not empty."""
        os.rename(self.place, name)
        self.place = name

    def finish(self, opened: list[str], seconds: float) -> bool:
        """Put the whole table into its place; False where that was not to be.

        Args:
            opened: the files that samples were read from, as far as the key does not know them.
            seconds: how long filling took.
        """
        depends = stats_of(opened)
        if depends is None or any(modified >= self._began for _, _, modified in depends):
            self.abandon()
            return False
        files = [
            {"name": name, "bytes": held.nbytes, "sums": sums(held)} for name, held in self.table.contents().items()
        ]
        manifest = {
            "format": FORMAT,
            "count": self.table.count,
            "layout": self.table.layout.to_json(),
            "uneven": self._uneven,
            "files": files,
            "depends": depends,
            "fill_seconds": round(seconds, 3),
        }
        final = self._folder / self._key
        try:
            (self.place / "manifest.json").write_text(json.dumps(manifest))
            for name in ("present", "layout.json"):
                (self.place / name).unlink()
            os.rename(self.place, final)
            (final / "lock").unlink()
        except OSError:  # another process was first, or the disk is full: our own table stays mapped
            shutil.rmtree(self.place, ignore_errors=True)
            self._unlock()
            return False
        self._unlock()
        return True

    def abandon(self) -> None:
        """Remove its files. The table stays usable in this process: mapped files live on without a name."""
        shutil.rmtree(self.place, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1
