"""The files that a data set is made of: those its attributes name, and those it is seen to open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from itertools import chain
from types import CodeType

from overdrive.core.whose import is_library

# Listing takes about 3 µs a file: 0.6 s for this many. Past it a data set is kept for one process only.
_MOST_FILES = 200_000
_LONGEST_PATH = 4096
_MOST_ABSENT = 200_000
_LONGEST_NAME = 255
_NEVER_LISTED = frozenset(("__pycache__", ".git"))
# In a long list of texts this many are tried; where none is a path, the others are taken for none either.
_TRIED = 64
_LONG_LIST = 1000
_NO_DATA = ("/proc/", "/sys/", "/dev/")


class Files:
    """Paths with size and modification time: existing ones among the texts that were noted.

    Args:
        besides: a folder whose files do not count: our own cache is nobody's data.
        earlier: its files are as they were then; they need not be looked at again.
    """

    def __init__(self, besides: str, earlier: Files | None = None) -> None:
        self._besides = os.path.realpath(besides)
        self._earlier = earlier._stats if earlier is not None else {}
        # Path to size and modification time, as a text: 50,000 tuples would set off the garbage collector,
        # which took 0.2 of 0.4 s.
        self._stats: dict[str, str] = {}
        self._folders: dict[str, list[tuple[str, int, int]]] = {}
        self.too_many = False
        self.looked_for = False  # whether code of the data set looks for files, which may come and go
        self.too_many_absent = False
        self._absent: dict[str, None] = {}

    def note(self, text: str) -> None:
        """Remember it if it is the path of a file or folder."""
        if not text or len(text) > _LONGEST_PATH or "\0" in text or text in self._stats or text.startswith(_NO_DATA):
            return
        try:
            found = os.stat(text)
        except (OSError, ValueError):
            return self._miss(text)
        if stat.S_ISREG(found.st_mode):
            self._stats[text] = _status(found)
        elif stat.S_ISDIR(found.st_mode):
            path = os.path.realpath(text)
            if path not in self._folders and not self.too_many:
                self._folders[path] = []
                self._list(path, self._folders[path])

    def _miss(self, text: str) -> None:
        """There is no such file yet."""
        if len(self._absent) >= _MOST_ABSENT:
            self.too_many_absent = True
        elif text and "\0" not in text and (os.sep in text or len(text) <= _LONGEST_NAME):
            self._absent[text] = None

    def note_all(self, texts: list[str]) -> None:
        if len(texts) > _LONG_LIST and not any(map(_exists, texts[:: len(texts) // _TRIED])):
            for text in texts:
                self._miss(text)
            return
        stats, look, regular = self._stats, os.stat, stat.S_ISREG
        if self._earlier and self._earlier.keys() >= set(texts):
            stats.update(zip(texts, map(self._earlier.__getitem__, texts), strict=True))
            return
        for text in texts:
            try:  # as `note`, for the usual case: half of the time
                found = look(text)
            except (OSError, ValueError):
                self._miss(text)
                continue
            if regular(found.st_mode):
                stats[text] = f"{found.st_size} {found.st_mtime_ns}"
            else:
                self.note(text)

    def _list(self, top: str, found: list[tuple[str, int, int]]) -> None:
        pending = [top]
        while pending and not self.too_many:
            try:
                entries = list(os.scandir(pending.pop()))
            except OSError:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _NEVER_LISTED and entry.path != self._besides:
                            pending.append(entry.path)
                    else:
                        status = entry.stat()
                        found.append((entry.path, status.st_size, status.st_mtime_ns))
            self.too_many = len(found) > _MOST_FILES
        found.sort()

    def named(self) -> list[str]:
        """The files that were named themselves, in that order, as they were named."""
        return list(self._stats)

    def all(self) -> Iterator[str]:
        """Every file, those in folders too."""
        return chain(self._stats, (path for listing in self._folders.values() for path, _, _ in listing))

    def absolute(self) -> set[str]:
        """The absolute path of every file."""
        known = set(_absolute(list(self._stats)))
        for listing in self._folders.values():
            known.update(path for path, _, _ in listing)
        return known

    def absent(self) -> list[str]:
        """Texts that would be paths, if there were something."""
        return list(self._absent)

    def folders(self) -> list[str]:
        """Those that were named, with all that is below them, but our own."""
        below = {os.path.dirname(path) for listing in self._folders.values() for path, _, _ in listing}
        return [*self._folders, *(below - self._folders.keys())]

    def text(self) -> str:
        """All of it, the same for the same files."""
        stats = zip(_absolute(list(self._stats)), self._stats.values(), strict=True)
        alone = sorted([f"{path}\0{status}" for path, status in stats])
        return "\0".join(alone) + repr(sorted(self._folders.items()))

    def uncovered(self, paths: set[str]) -> list[str]:
        """The paths that are not among these files, nor folders with all that is below them."""
        rest = paths - self.absolute()
        if self.looked_for:
            rest = rest - {os.path.join(folder, "") for folder in self.folders()}
        named = set()
        for path in rest:
            with contextlib.suppress(OSError):
                named.add(_status(os.stat(path)))
        # One that was noted under another name has the same size and time: to resolve 50,000 names takes 1 s.
        return sorted(rest - {os.path.realpath(path) for path, status in self._stats.items() if status in named})

    def unnamed(self, asked: set[str]) -> set[str]:
        """Those of these absolute paths that do not count here, whether there is something or not."""
        rest = asked - self.absolute()
        if not self.looked_for or not rest:
            return rest
        folders = set(self.folders())
        rest = rest - self._folders.keys() - set(_absolute(self.absent()))
        return {path for path in rest if os.path.dirname(path) not in folders}


class NoFiles(Files):
    """None, whatever is noted."""

    def __init__(self) -> None:
        super().__init__("")

    def note(self, text: str) -> None:
        pass

    def note_all(self, texts: list[str]) -> None:
        pass


def looks_for_files(code: CodeType) -> bool:
    """Whether it may ask which files there are."""
    return not _LOOKS.isdisjoint(code.co_names)


_LOOKS = frozenset(("listdir", "scandir", "glob", "iglob", "rglob", "iterdir", "walk", "exists", "lexists", "isfile"))
_LOOKS |= frozenset(("isdir", "is_file", "is_dir", "access", "stat", "lstat", "getsize", "getmtime", "getctime"))


def _status(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"


# What `os.path.abspath` leaves out or puts in, among paths with a zero before and after each.
_ODD = ("//", "/./", "/../", "/\0", "/.\0", "/..\0", "\0.")


def _absolute(paths: list[str]) -> list[str]:
    """Absolute paths as `os.path.abspath` makes them, which takes 0.1 s for 50,000."""
    whole = "\0".join(("", *paths, ""))
    if whole.count("\0/") == len(paths) and not any(odd in whole for odd in _ODD):
        return paths
    return [os.path.abspath(path) for path in paths]


def _exists(text: str) -> bool:
    try:
        return len(text) <= _LONGEST_PATH and os.path.exists(text)
    except ValueError:
        return False


def _may_be_data(path: str) -> bool:
    return not path.startswith(_NO_DATA) and not is_library(path)


def data_files(paths: set[str]) -> set[str]:
    """Real paths of these, without those of Python, packages and the system. What is not there may come to be there.

    What ends with a separator is a folder, and stays so.
    """
    folders: dict[str, str] = {}
    found = set()
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:  # 15 µs each otherwise
            folders[folder] = os.path.realpath(folder)
        real = os.path.join(folders[folder], name)
        try:
            mode = os.lstat(real).st_mode
        except OSError:
            if _may_be_data(real):
                found.add(path)
            continue
        if stat.S_ISLNK(mode):
            real = os.path.realpath(real)
        if real != path and os.path.isabs(path) and not is_library(real):
            found.add(path)  # there is a link on the way, which may come to lead elsewhere
        if _may_be_data(real) and (not name or os.path.isfile(real)):
            found.add(real)
    return found


def places_of(asked: set[str]) -> set[str]:
    """Where to watch for these paths: a folder for itself, anything else in its folder, which ends with a separator.

    Sources of Python are left out, which it looks for where it warns.
    """
    data = {path for path in asked if _may_be_data(path) and path[-3:] != ".py"}
    return {path if os.path.isdir(path) else os.path.join(os.path.dirname(path), "") for path in data}


def open_files() -> list[str]:
    """Those that this process can read by a number, as far as they have a name: not the log that it writes to."""
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{number}")
                writes = fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
                if not writes and _may_be_data(path) and os.path.isfile(path):
                    found.append(path)
    return found


def stats_of(paths: list[str]) -> list[tuple[str, int, int]] | None:
    """Path, size and modification time of each; None where one is gone."""
    try:
        return [(path, (status := os.stat(path)).st_size, status.st_mtime_ns) for path in paths]
    except OSError:
        return None
