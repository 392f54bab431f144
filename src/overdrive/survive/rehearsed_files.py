"""The files while a run is made again: it finds what it found the first time, and writes into a copy.

What is written then is of no use, since no tensor has its numbers; the user's files stay as they are until the
snapshot's step, where they become what they were at that step, and open files go on in them.
"""

from __future__ import annotations

import os
import posix
import shutil
from pathlib import Path
from typing import Any

from overdrive.sandbox.mirror import Mirror
from overdrive.sandbox.redirected_files import Redirection
from overdrive.survive.file_states import State, link, remove
from overdrive.survive.files import Files, open_for_writing
from overdrive.survive.folder import Unusable
from overdrive.survive.journal import Damaged


class _Mirror(Mirror):
    """Only what counts as the run's files is written into the copy."""

    def __init__(self, root: str, files: Files) -> None:
        super().__init__(root, [])
        self._counted = files

    def is_outside(self, place: str) -> bool:
        return super().is_outside(place) and self._counted.counts(place)


class RehearsedFiles:
    def __init__(self, root: Path, files: Files) -> None:
        """`root`: a folder for the copy, which is made anew."""
        self._root, self._files = root, files
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(mode=0o700)
        self._redirection = Redirection(_Mirror(str(self._root), files))
        self.path_to_write, self.path_to_read = self._redirection.path_to_write, self._redirection.path_to_read

    def enter(self) -> None:
        """From here on the program sees what it saw at its beginning.

        Raises:
            Unusable: what a file was then is lost.
        """
        self._redirection.enter()
        before = self._files.before
        for path in sorted(before, reverse=True):
            if before[path][0] == "absent" and os.path.lexists(path):
                remove(path)
        try:
            for path in sorted(before):
                self._make(path, before[path])
        except Damaged as error:
            self._redirection.exit()
            told = f"this run cannot be made again, as {error}"
            raise Unusable(f"{told}: --fresh begins it anew, with the files as they are") from None

    def leave(self, states: dict[str, State], positions: list[list[Any]]) -> None:
        """The snapshot's step has come.

        Args:
            positions: of files that were open then: path, place, block size.

        Raises:
            OSError: files cannot be made what they were.
            Damaged: the content of one is not what was kept.
            OtherState: Python keeps back another part of an open one.
        """
        mirror = self._redirection.mirror
        within = mirror.files + "/"
        found = open_for_writing(lambda path: path[len(within) - 1 :] if path.startswith(within) else None)
        left = [tuple(each) for each in positions]
        handles = [(each[0], each[1], _position(each, left), each[4]) for each in found]
        folder = mirror.current_folder()
        self._redirection.exit()
        if posix.getcwd() != folder:
            posix.chdir(folder)
        self._files.put_back(states)
        for handle, path, position, flags in handles:
            new = posix.open(path, flags & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL))
            os.lseek(new, position, os.SEEK_SET)
            os.dup2(new, handle, os.get_inheritable(handle))
            os.close(new)
        shutil.rmtree(self._root, ignore_errors=True)

    def _make(self, path: str, state: State) -> None:
        if state[0] == "folder":
            os.makedirs(path, exist_ok=True)
        elif state[0] == "link":
            link(path, state[1])
        elif state[0] == "file":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as target:
                self._files.kept.copy(state[1], path, target)
            os.chmod(path, state[2])


def _position(found: tuple[int, str, int, int, int], left: list[tuple[Any, ...]]) -> int:
    """Where an open file is to go on. `left`: of the snapshot, from which its own is taken."""
    _, path, now, blocks, _ = found
    then = next((each for each in left if each[0] == path), None)
    if then is None:
        return now
    left.remove(then)
    place, *blocks_then = then[1:]
    if place != now and blocks_then and blocks_then[0] != blocks:  # as large are Python's buffers
        from overdrive.survive.refusals import OtherState

        told = f"{path} was written in blocks of {blocks_then[0]:,} bytes, and in the run's folder of {blocks:,}"
        raise OtherState(f"{told}: give --survive a folder on the same file system")
    return int(place)
