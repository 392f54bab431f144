"""A table on disk that is being filled, by one process or by several of this machine, the ranks of a training, say.

One begins it under its key, others join. Each says by a file that it writes, and vouches for its rows when it will
write no more: that the data set is still the one that the key stands for. The last one to vouch puts the table into its
place, if it is whole; else it is left for a later process to go on with. Of a process that dies, or whose data set has
changed, nobody knows what it has written: such a table serves those who have it, and is not kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.changes.files import stats_of
from overdrive.datacache.codes import Coded, coded_from_json, files_of, table_of
from overdrive.datacache.disk import PARTIAL, locked, mapped, new_file, new_place, sums
from overdrive.datacache.in_use import InUse, this_machine
from overdrive.datacache.manifest import FORMAT, written
from overdrive.datacache.ragged import FiledTable, Filled
from overdrive.datacache.table import Table
from overdrive.forks.layout import Layout

_WRITES, _VOUCHED = "writes-", "vouched-"
_LEFT_SECONDS = 24 * 3600.0  # that one which is not whole is kept
# How many partial tables of this process take part in each. On file servers a process does not meet its own locks, and
# loses them when it closes the file anywhere: it must not even ask.
_taking_part: Counter[Path] = Counter()


def takes_part(place: Path) -> bool:
    """Whether this process does."""
    return _taking_part[place] > 0


def is_left(place: Path) -> bool:
    """Whether all who wrote to it have vouched for their rows, the last one not long ago: another may go on with it."""
    with contextlib.suppress(OSError):
        vouched = list(place.glob(_VOUCHED + "*"))
        fresh = any(time.time() - each.stat().st_mtime < _LEFT_SECONDS for each in vouched)
        return fresh and (place / "layout.json").is_file() and not any(place.glob(_WRITES + "*"))
    return False


class PartialTable:
    """This process's part in it. `joined`: another process is filling it."""

    def __init__(self, folder: Path, key: str, place: Path, lock: int, joined: bool) -> None:
        self.joined = joined
        self.place = place
        self.table: Table
        self._folder = folder
        self._key = key
        self._lock = lock  # held by all who take part: whoever gets it for itself knows that they are gone
        self._name = f"{os.getpid()}-{os.urandom(6).hex()}"
        self._began = time.time_ns()

    @classmethod
    def begin(
        cls,
        folder: Path,
        key: str,
        layout: Layout,
        count: int,
        filled: Filled | None = None,
        limit: int = 0,
        coded: Coded = (),
    ) -> PartialTable:
        """
        Args:
            folder: of the store.
            filled: where rows are of different lengths, how long one is.
            limit: bytes that such rows may take together.
            coded: leaves that are kept as codes.

        Raises:
            OSError: there is no room, or another process fills this table.
        """
        place = new_place(folder)
        place.mkdir(mode=0o700)
        in_use = InUse(place)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        partial = cls(folder, key, place, lock, joined=False)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            partial._say_that_it_writes()
            present = new_file(place / "present", count).view(np.bool_)
            if filled is not None:
                partial.table = FiledTable.begin(place, layout, count, present, filled, limit)
            else:
                parts = [
                    new_file(place / name, rows * size).reshape(rows, size)
                    for name, rows, size in files_of(layout, count, coded)
                ]
                partial.table = table_of(layout, count, parts, present, coded, place)
            description = {"layout": layout.to_json(), "count": count, "limit": limit if filled is not None else None}
            (place / "layout.json").write_text(json.dumps({**description, "coded": coded, "machine": this_machine()}))
            partial.place = folder / f"{PARTIAL}{key}"
            partial.table.in_use = in_use
            os.rename(place, partial.place)  # only one can take this name: the others' folder is not empty
            in_use.moved(partial.place)
            _taking_part[partial.place] += 1
        except OSError:
            partial.place = place
            partial.abandon()
            raise
        return partial

    @classmethod
    def join(cls, folder: Path, key: str, filled: Filled | None = None) -> PartialTable:
        """What another process of this machine has begun.

        Raises:
            OSError, ValueError, LookupError, TypeError: it has just been put into place, or given up; or it is
                another machine's.
        """
        place = folder / f"{PARTIAL}{key}"
        partial = cls(folder, key, place, os.open(place / "lock", os.O_RDWR | os.O_CLOEXEC), joined=True)
        _taking_part[place] += 1
        try:
            fcntl.flock(partial._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            description = json.loads((place / "layout.json").read_text())
            if description["machine"] != this_machine():
                raise ValueError(f"{place} is filled on another machine")
            partial._say_that_it_writes()  # before the first write
            in_use = InUse(place)
            partial.table = _joined(place, description, filled)
            partial.table.in_use = in_use
        except BaseException:  # nothing has been written yet
            (place / (_WRITES + partial._name)).unlink(missing_ok=True)
            partial._let_go()
            raise
        return partial

    @classmethod
    def take_over(cls, folder: Path, key: str, filled: Filled | None = None) -> PartialTable:
        """What processes that are gone have left, each of whose files is as they read it.

        Raises:
            OSError, ValueError, LookupError, TypeError: nobody has left one, or another process was first.
        """
        place = folder / f"{PARTIAL}{key}"
        with locked(place / "lock"):
            if not is_left(place) or any(stats_of([each[0] for each in one]) != one for one in _depends(place)):
                raise LookupError(f"{place} is none that can be gone on with")
        partial = cls.join(folder, key, filled)
        partial.joined = False
        partial.table.count_present()
        return partial

    @property
    def shared(self) -> bool:
        """Whether other processes take part, or have."""
        return len(list(self.place.glob(_WRITES + "*"))) + len(list(self.place.glob(_VOUCHED + "*"))) > 1

    def finish(self, opened: list[str], seconds: float) -> bool:
        """Vouch for what was written here, and put the table into its place if it is whole; whether it is there.

        Args:
            opened: the files that samples were read from, as far as the key does not know them.
            seconds: how long filling took.
        """
        depends = stats_of(opened)
        if depends is None or any(modified >= self._began for _, _, modified in depends):
            self.abandon()
            return False
        placed = False
        with contextlib.suppress(OSError):  # another has put it into place already
            (self.place / (_WRITES + self._name)).write_text(json.dumps(depends))
            os.rename(self.place / (_WRITES + self._name), self.place / (_VOUCHED + self._name))
            self.table.count_present()
            if self.table.complete and not any(self.place.glob(_WRITES + "*")):
                placed = self._put_into_place(seconds)
        self._let_go()
        return placed

    def abandon(self) -> None:
        """Nothing of it is to be kept. The table stays usable in this process: mapped files live on without a name."""
        if not self.shared:
            shutil.rmtree(self.place, ignore_errors=True)
        self._let_go()

    def _say_that_it_writes(self) -> None:
        (self.place / (_WRITES + self._name)).touch(mode=0o600, exist_ok=False)

    def _put_into_place(self, seconds: float) -> bool:
        os.rename(self.place / "layout.json", self.place / "finishing")  # only one can; nobody joins from now on
        vouched = list(self.place.glob(_VOUCHED + "*"))
        depends: list[Any] = sorted({each for one in _depends(self.place) for each in one})
        contents = self.table.contents()
        manifest = {
            "format": FORMAT,
            "count": self.table.count,
            "layout": self.table.layout.to_json(),
            "ragged": isinstance(self.table, FiledTable),
            "coded": self.table.coded,
            "files": [{"name": name, "bytes": held.nbytes, "sums": sums(held)} for name, held in contents.items()],
            "depends": depends,
            "fill_seconds": round(seconds, 3),
        }
        final = self._folder / self._key
        try:
            (self.place / "manifest.json").write_text(written(manifest))
            for path in (self.place / "present", self.place / "finishing", *vouched):
                path.unlink()
            os.rename(self.place, final)
            if self.table.in_use is not None:
                self.table.in_use.moved(final)
            (final / "lock").unlink()
        except OSError:  # another process was first, or the disk is full: our own table stays mapped
            shutil.rmtree(self.place, ignore_errors=True)
            return False
        return True

    def _let_go(self) -> None:
        """The last one removes it, unless another process may go on with it."""
        if self._lock < 0:
            return
        _taking_part[self.place] -= 1
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # forked processes have this file open as well
            if not takes_part(self.place):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                its = os.path.samestat(os.fstat(self._lock), os.stat(self.place / "lock"))
                if its and not is_left(self.place):
                    shutil.rmtree(self.place, ignore_errors=True)
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            os.close(self._lock)
        self._lock = -1


def _depends(place: Path) -> list[list[tuple[str, int, int]]]:
    """What each that has vouched read samples from."""
    found = [json.loads(path.read_text()) for path in place.glob(_VOUCHED + "*")]
    return [[(str(path), int(size), int(modified)) for path, size, modified in each] for each in found]


def _joined(place: Path, description: Any, filled: Filled | None) -> Table:
    layout, count = Layout.from_json(description["layout"]), int(description["count"])
    present = mapped(place / "present", count, 1, writable=True).reshape(-1).view(np.bool_)
    if (description["limit"] is None) != (filled is None):
        raise ValueError("it has rows of another kind")
    if filled is not None:
        return FiledTable.join(place, layout, count, present, filled, int(description["limit"]))
    coded = coded_from_json(layout, description.get("coded", ()))
    files = files_of(layout, count, coded)
    parts = [mapped(place / name, rows, size, writable=True) for name, rows, size in files]
    return table_of(layout, count, parts, present, coded, place)
