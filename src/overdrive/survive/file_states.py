"""The states of files: what is there, with a copy of each content that one may have to get back."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posix
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from overdrive.survive.contents import Contents

State = list[Any]  # ["absent"], ["folder", mode], ["link", target] or ["file", sha256, mode]


class FileStates:
    """The contents lie in a folder of the run's, by their digests."""

    def __init__(self, contents: Path) -> None:
        self._contents = contents
        self._contents.mkdir(mode=0o700, exist_ok=True)
        self.kept = Contents(contents)
        self._known: dict[str, tuple[Any, State]] = {}  # by path: the file's stamp, and its state then

    def of(self, path: str) -> State | None:
        """None for what is neither file, folder nor link."""
        try:
            found = posix.lstat(path)
        except OSError:
            return ["absent"]
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            return ["link", posix.readlink(path)]
        if stat.S_ISDIR(found.st_mode):
            return ["folder", mode]
        if not stat.S_ISREG(found.st_mode):
            return None
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns, mode)
        known = self._known.get(path)
        if known is None or known[0] != stamp or not self.kept.path(known[1][1]).exists():
            known = self._known[path] = (stamp, ["file", self._keep(path), mode])
        return known[1]

    def make(self, path: str, state: State) -> None:
        """Have this state there, where nothing of another kind is."""
        if state[0] == "folder":
            os.makedirs(path, exist_ok=True)
        elif state[0] == "link":
            link(path, state[1])
        elif state[0] == "file":
            if not self.holds(path, state[1]):
                self._fill(path, state[1])
            if stat.S_IMODE(os.stat(path).st_mode) != state[2]:  # else it may be another user's to change
                os.chmod(path, state[2])

    def holds(self, path: str, digest: str) -> bool:
        """Whether there is a file with this content."""
        if not os.path.isfile(path) or os.path.islink(path):
            return False
        found = hashlib.sha256()
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                found.update(part)
        return found.hexdigest() == digest

    def keep_only(self, states: Iterable[State]) -> None:
        """Drop contents that none of these needs."""
        needed = {state[1] for state in states if state[0] == "file"}
        for path in self._contents.iterdir():
            if path.name not in needed:
                path.unlink()

    def _keep(self, path: str) -> str:
        """Copy its content into ours, by its digest."""
        digest = hashlib.sha256()
        temporary = self._contents / f"new.{os.getpid()}"
        with open(path, "rb") as source, open(temporary, "wb") as target:
            while part := source.read(1 << 20):
                digest.update(part)
                target.write(part)
            target.flush()
            os.fsync(target.fileno())
        os.replace(temporary, self._contents / digest.hexdigest())
        return digest.hexdigest()

    def _fill(self, path: str, digest: str) -> None:
        """Into the file that is there: who has it open has this content too."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path) and not os.access(path, os.W_OK):  # the program has left it so
            os.chmod(path, 0o600)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as target:
            self.kept.copy(digest, path, target)
            target.truncate()


def kind_of(path: str) -> str:
    if os.path.islink(path):
        return "link"
    return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else "absent"


def link(path: str, target: str) -> None:
    """Have a link there lead to this target."""
    if not (os.path.islink(path) and os.readlink(path) == target):
        remove(path)
        os.symlink(target, path)


def remove(path: str) -> None:
    """A folder only where it is empty."""
    kind = kind_of(path)
    if kind == "folder":
        if not os.listdir(path):  # else there is something in it that is not the run's
            os.rmdir(path)
    elif kind != "absent":
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            os.unlink(path)
