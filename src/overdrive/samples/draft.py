"""A table on disk that is being filled: by the process that began it, and by others of this machine that found it.

Who writes but has not begun it, the ranks of a training, say, leaves a file that says so, and vouches for its rows when
it has written all that it will: that the data set is still the one that the key stands for. The table is put into its
place when it is whole and all have vouched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np

from overdrive.samples.disk import DRAFT, mapped, new_file, new_place, sums, this_machine
from overdrive.samples.files import stats_of
from overdrive.samples.layout import Layout
from overdrive.samples.table import Table
from overdrive.samples.uneven import FiledTable, Filled

FORMAT = 1
_WRITES, _VOUCHED = "writes-", "vouched-"


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
            told = {
                "layout": layout.to_json(),
                "count": count,
                "uneven": self._uneven,
                "machine": this_machine(),
            }
            (self.place / "layout.json").write_text(json.dumps(told))
            self._claim(folder / f"{DRAFT}{key}")
        except OSError:
            self.abandon()
            raise

    def _claim(self, name: Path) -> None:
        """Take the name under which other processes find it. Only one can: the others' folder is not empty."""
        os.rename(self.place, name)
        self.place = name

    @property
    def awaited(self) -> bool:
        """Whether another process may still write."""
        return any(self.place.glob(_WRITES + "*"))

    @property
    def shared(self) -> bool:
        """Whether another process has written."""
        return any(self.place.glob(_VOUCHED + "*"))

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
            for path in (self.place / "present", self.place / "layout.json", *self.place.glob(_VOUCHED + "*")):
                path.unlink()
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


class Joined:
    """A table that another process of this machine has begun, to be filled together with it.

    Raises:
        OSError, ValueError, LookupError, TypeError: it has just been put into place, or given up; or it is another
            machine's.
    """

    def __init__(self, place: Path) -> None:
        told = json.loads((place / "layout.json").read_text())
        if told["machine"] != this_machine():
            raise ValueError(f"{place} is filled on another machine")
        layout, count = Layout.from_json(told["layout"]), int(told["count"])
        self._place = place
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        if told["uneven"]:  # an index has one writer
            present = mapped(place / "present", count, 1).reshape(-1).view(np.bool_)
            self.table: Table = FiledTable.join(place, layout, count, present)
            return
        (place / (_WRITES + self._name)).touch(mode=0o600, exist_ok=False)  # before the first write
        try:
            present = mapped(place / "present", count, 1, writable=True).reshape(-1).view(np.bool_)
            names = [(place / f"{number}.raw", leaf.bytes) for number, leaf in enumerate(layout.leaves)]
            leaves = [mapped(path, count, size, writable=True) for path, size in names]
        except (OSError, ValueError):
            self.vouch()
            raise
        self.table = Table(layout, count, leaves, present)

    def vouch(self) -> None:
        """Nothing more will be written, and what was is right."""
        with contextlib.suppress(OSError):
            os.rename(self._place / (_WRITES + self._name), self._place / (_VOUCHED + self._name))
