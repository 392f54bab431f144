"""What fetching does with files: those that it opens for reading, and whether it does more than to read."""

from __future__ import annotations

import os
import sys
import threading

from overdrive.changes.files import data_files
from overdrive.forks.effects import effect_of


class Opened:
    """Collects the files that this thread opens for reading, inside its `with` blocks.

    An audit hook cannot be removed, so there is one a process, which looks at who listens.

    Attributes:
        effect: what was done besides reading, in words; nothing if that was all.
    """

    _listening: Opened | None = None
    _installed = False

    def __init__(self) -> None:
        self._thread = 0
        self._read: set[str] = set()
        self._fresh: set[str] = set()
        self.effect = ""

    def __enter__(self) -> Opened:
        if not Opened._installed:
            sys.addaudithook(_hook)
            Opened._installed = True
        self._thread = threading.get_ident()
        Opened._listening = self
        return self

    def __exit__(self, *_: object) -> None:
        Opened._listening = None

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if threading.get_ident() != self._thread:
            return
        self.effect = self.effect or effect_of(event, arguments)
        path = arguments[0] if arguments else None
        if event not in ("open", "sqlite3.connect") or not isinstance(path, (str, bytes)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE == os.O_RDONLY):
            return
        name = os.path.abspath(os.fsdecode(path))
        if name not in self._read:
            self._read.add(name)
            self._fresh.add(name)

    def paths(self) -> set[str]:
        """Real paths of what was read; the files of Python, packages and the system left out."""
        return data_files(self._read)

    def fresh(self) -> set[str]:
        """The same of what was read since this was last asked."""
        if not self._fresh:
            return set()
        fresh, self._fresh = self._fresh, set()
        return data_files(fresh)


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    listening = Opened._listening
    if listening is not None:
        listening.hear(event, arguments)
