"""The files that a program reads and does not write: whether they are what they were when the run read them.

Each has its size and time; the first few their content as well, by its beginning and end, since data that is copied
anew for each job (to a node's own disk) has other times and is the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Container
from pathlib import Path

from overdrive.core.atomic_file import write_atomically
from overdrive.core.file_ends import digest_of_ends
from overdrive.core.whose import is_library_file

Noted = list[int | str]  # size, time in nanoseconds, sha256 of beginning and end, or "" where only the size counts

_NAME = "inputs"
_MOST, _MOST_DIGESTS = 2000, 200  # files: 2 ms, and 20 ms where all are small
_CODE = (".py", ".pyc", ".so", ".pth")
_SYSTEM = (f"{sys.prefix}/", f"{sys.base_prefix}/", "/usr/", "/etc/", "/lib", "/var/lib/", "/var/cache/")
_HIDDEN = "/."  # what trackers read of a repository, settings of the user's


class Inputs:
    """Of one run, in its folder."""

    def __init__(self, folder: Path, counts: Callable[[str], bool]) -> None:
        """`counts`: whether a file there may be the program's at all."""
        self._path, self._counts = folder / _NAME, counts
        self._process = os.getpid()
        self._heard: set[str] = set()
        self._noted = noted_in(folder)
        self._places = dict.fromkeys(self._noted)
        self._lasting: set[str] = set()  # those that change while the run goes on: no data

    def heard(self, path: object) -> None:
        """This file was opened to read. A loader's workers do not tell."""
        if len(self._heard) >= _MOST or os.getpid() != self._process or not isinstance(path, str):
            return
        if path in self._heard or path.endswith(_CODE):
            return
        self._heard.add(path)
        place = os.path.realpath(path)
        if _HIDDEN in place or place.startswith(_SYSTEM) or is_library_file(place):
            return
        if self._counts(place):
            self._places[place] = None

    def keep(self, written: Container[str]) -> None:
        """Write down those that were read by now, but for what the run has `written`."""
        found: dict[str, Noted] = {}
        for place in list(self._places):
            now = self._noted.get(place) or _noted(place, len(found) < _MOST_DIGESTS)
            if now is None or place in written or place in self._lasting:
                continue
            if is_same(place, now):
                found[place] = now
            else:
                self._lasting.add(place)
        if found != self._noted:
            self._noted = found
            with contextlib.suppress(OSError):  # no room: then a change is not noticed
                write_atomically(self._path, json.dumps(found) + "\n")


def noted_in(folder: Path) -> dict[str, Noted]:
    try:
        found = json.loads((folder / _NAME).read_text())
        return {str(path): [int(size), int(at), str(digest)] for path, (size, at, digest) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def changed_input(folder: Path) -> str:
    """The first that is another file now; "" where all are the same. One that is gone the program will miss itself."""
    return next((path for path, then in noted_in(folder).items() if not is_same(path, then)), "")


def is_same(path: str, then: Noted) -> bool:
    """What is gone or cannot be read is not another one."""
    now = _noted(path, False)
    if now is None or now[:2] == then[:2]:
        return True
    return now[0] == then[0] and (not then[2] or (_noted(path, True) or then)[2] == then[2])


def _noted(path: str, with_content: bool) -> Noted | None:
    """None for what is no file, or no path."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return None
        return [found.st_size, found.st_mtime_ns, digest_of_ends(path, found.st_size) if with_content else ""]
    except (OSError, ValueError):
        return None
