"""Checks the tables that this program used last time, while it is still starting, on a core that is idle then."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.datacache.disk import mapped, read_note, sums, used_at
from overdrive.datacache.in_use import InUse
from overdrive.datacache.table import Bytes

NOTE = "programs"  # beside a table: which programs have used it
_MOST_PROGRAMS = 16
_WAIT = 0.005  # seconds between two looks whether a table is summed up; others may come after it


def this_program() -> str:
    """The same for the same script and arguments; a guess at what will be used is all that hangs on it."""
    words = [os.path.abspath(sys.argv[0]), *sys.argv[1:]] if sys.argv else []
    return f"{zlib.crc32(json.dumps(words).encode()):08x}"


def with_program(note: Any, program: str) -> list[str] | None:
    """The note with this program in it; None where that is so already."""
    known = [each for each in note if isinstance(each, str)] if isinstance(note, list) else []
    return None if program in known else [*known[1 - _MOST_PROGRAMS :], program]


def without_program(note: Any, program: str) -> list[str]:
    return [each for each in note if isinstance(each, str) and each != program] if isinstance(note, list) else []


@dataclass(frozen=True)
class Summed:
    """One file of a table. Its memory has been read through: mapped anew, each page would cost the training a fault."""

    data: Bytes
    sums: list[int]


class EarlyCheck:
    """A thread that reads and sums up the files of some tables; whoever opens one of them then need not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = this_program()
        self._process = os.getpid()
        self._given_up = False
        self._noted: list[Path] = []  # what the program used last time, and nobody has taken yet
        self._found: dict[Path, tuple[str, dict[str, Summed], InUse]] = {}
        self._thread = threading.Thread(target=self._check, name="overdrive-early-check", daemon=True)
        self._thread.start()

    def take(self, place: Path, manifest: str) -> dict[str, Summed]:
        """Take the table's files that were summed up, by name; none where another table stands there now."""
        if os.getpid() != self._process:
            return {}  # a fork has no such thread
        while place not in self._found and self._thread.is_alive():
            self._thread.join(_WAIT)
        if place in self._noted:
            self._noted.remove(place)
        of, found, _ = self._found.pop(place, ("", {}, None))
        return found if of == manifest else {}

    def end(self) -> None:
        """Nobody will open a table any more: the program is over, perhaps for its arguments."""
        self._given_up = True

    def give_up_rest(self) -> list[Path]:
        """Release what nobody has taken, and name it: the program's data set, or its code, may be another by now."""
        if os.getpid() != self._process:
            return []
        self.end()
        self._thread.join()
        rest, self._noted, self._found = self._noted, [], {}
        return rest

    def _check(self) -> None:
        with contextlib.suppress(Exception):  # then they are checked when they are opened, which says what is wrong
            notes = [path for path in self._folder.glob(f"*/{NOTE}.json") if self.program in (read_note(path) or [])]
            self._noted = sorted((path.parent for path in notes), key=used_at, reverse=True)
            for place in list(self._noted):
                if not self._given_up:
                    self._sum_up(place)

    def _sum_up(self, place: Path) -> None:
        in_use = InUse(place)
        manifest = (place / "manifest.json").read_text()
        found: dict[str, Summed] = {}
        for entry in json.loads(manifest)["files"]:
            data = mapped(place / entry["name"], 1, int(entry["bytes"])).reshape(-1)
            threads = max(1, (os.cpu_count() or 1) - 1)
            found[entry["name"]] = Summed(data, sums(data, threads, lambda: self._given_up))
        if not self._given_up:
            self._found[place] = manifest, found, in_use
