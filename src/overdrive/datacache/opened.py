"""What fetching does with files: those that it opens for reading, the folders that it lists, and whether it does more
than to read."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from overdrive.changes.files import Files, data_files, places_of
from overdrive.core.in_place import in_place_of
from overdrive.forks.effects import effect_of

# Python lists folders to find what is imported.
_FINDS_MODULES = "<frozen importlib._bootstrap_external>"
_LISTINGS = ("os.listdir", "os.scandir")


class _Thread(threading.local):
    listening: Opened | None = None


_thread = _Thread()  # a program may fetch in several


class Opened:
    """Collects the files that this thread opens for reading, and the folders that it lists, inside its `with` blocks.

    The names of folders end with a separator.

    An audit hook cannot be removed, so there is one a process, which looks at who listens in the thread that it is in.

    Attributes:
        effect: what was done besides reading, in words; nothing if that was all.
    """

    _installed = False

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._fresh: set[str] = set()
        self.effect = ""

    def __enter__(self) -> Opened:
        if not Opened._installed:
            sys.addaudithook(_hook)
            Opened._installed = True
        _thread.listening = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.listening = None

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        self.effect = self.effect or effect_of(event, arguments)
        path = arguments[0] if arguments else None
        if event in _LISTINGS:
            return self._note(_folder_of(path))
        if event not in ("open", "sqlite3.connect") or not isinstance(path, (str, bytes)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE == os.O_RDONLY):
            return
        self._note(os.path.abspath(os.fsdecode(path)))

    def _note(self, name: str) -> None:
        if name not in self._read:
            self._read.add(name)
            self._fresh.add(name)

    def paths(self) -> set[str]:
        """Real paths of what was read or listed; the files of Python, packages and the system left out."""
        return data_files(self._read)

    def fresh(self) -> set[str]:
        """The same of what was read since this was last asked."""
        if not self._fresh:
            return set()
        fresh, self._fresh = self._fresh, set()
        return data_files(fresh)


class LookedFor(Opened):
    """Collects what this thread asks for, too: whether there is such a file (`os.path.exists`), how long it is.

    For a forked process: inside the `with` blocks two functions of `os` are others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: set[str] = set()
        self._real = {name: getattr(os, name) for name in _ASKS}

    def __enter__(self) -> LookedFor:
        for name, real in self._real.items():
            setattr(os, name, in_place_of(real)(functools.partial(self._ask, real)))
        super().__enter__()
        return self

    def __exit__(self, *told: object) -> None:
        super().__exit__(*told)
        for name, real in self._real.items():
            setattr(os, name, real)

    def _ask(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if _thread.listening is self and not isinstance(path, int) and kwargs.get("dir_fd") is None:
            self._asked.add(os.path.abspath(os.fsdecode(path)))
        return real(path, *args, **kwargs)

    def found(self, files: Files) -> list[str]:
        """What was read, listed or asked for, in order.

        Args:
            files: that are watched anyhow. Where a fetch asks for another file, each sample may ask for its own, under
                a name that is put together: it is the folder then that is to stay as it is.
        """
        return sorted(self.paths() | places_of(files.unnamed(self._asked)))


# `os.path.exists` and its like call the first. `os.lstat` is left out: to resolve a path asks it for each folder above.
_ASKS = ("stat", "access")


def _folder_of(listed: object) -> str:
    """The folder that is listed: by its name, by the number that it was opened as, or the one where this process is."""
    if isinstance(listed, int):
        return os.path.join(os.path.realpath(f"/proc/self/fd/{listed}"), "")
    return os.path.join(os.path.abspath(os.fsdecode(listed) if isinstance(listed, (str, bytes)) else "."), "")


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    listening = _thread.listening
    if listening is None or (event in _LISTINGS and sys._getframe(1).f_code.co_filename == _FINDS_MODULES):
        return
    listening.hear(event, arguments)
