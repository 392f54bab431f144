"""The files that a program writes: as they were before it began, and as they were at each snapshot.

Each file is noted when the program is about to change it for the first time, with a copy of what it was. A snapshot
has the state of all of them. So a run that begins again finds what it found the first time, and one that goes on
finds what it had written by then.
"""

from __future__ import annotations

import errno
import os
import posix
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overdrive.core.flag import FlagOfThread
from overdrive.core.places import samples_folder
from overdrive.core.whose import is_library_file
from overdrive.sandbox.redirect import WRITES
from overdrive.sandbox.redirected_files import WRITING
from overdrive.survive.before import Before
from overdrive.survive.changed_paths import changed_paths, place_of
from overdrive.survive.contents import CONTENTS
from overdrive.survive.file_states import FileStates, State, kind_of, remove
from overdrive.survive.ours import by_technique, is_python_file
from overdrive.survive.passing import Temporary

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)  # of the run's folder, not of the file
_OF_SQLITE = ("", "-journal", "-wal", "-shm")  # what a killed process leaves would be applied to the database put back
_STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.fork")
_HEARD = frozenset(("open", "sqlite3.connect", *WRITES, *_STARTS))
_CACHES = tuple(os.path.expanduser(each) + "/" for each in ("~/.cache", "~/.config", "~/.triton", "~/.nv"))


def _bytecode() -> tuple[str, ...]:
    """The folder that Python keeps it in, where it is told one (PYTHONPYCACHEPREFIX); else it lies in `__pycache__`."""
    return (os.path.join(os.path.realpath(sys.pycache_prefix), ""),) if sys.pycache_prefix else ()


class Files:
    """Made once in a process: what listens to writes cannot be taken away."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            Unusable: the list of a run that is gone on with is not what was written.
        """
        self._not_of_run = (f"{folder}/", f"{samples_folder()}/", "/dev/", "/proc/", "/sys/", *_CACHES, *_bytecode())
        self._states = FileStates(folder / CONTENTS)
        self.kept = self._states.kept
        self._list = Before(folder)
        self.before: dict[str, State] = self._list.read()
        self._process = os.getpid()
        self._busy = FlagOfThread()  # what it opens now is ours
        self._lock = threading.Lock()
        self.noting = False
        self.on_started: Callable[[str], object] = lambda what: None  # what the program does to have others work
        self.on_read: Callable[[Any], object] = lambda path: None  # a file was opened to read
        self.on_lost: Callable[[OSError], object] = lambda error: None  # what a file was could not be kept
        self._temporary = Temporary()
        self._unkept: dict[str, None] = {}  # the program's, in a temporary folder that a library has made

    def listen(self) -> None:
        self.noting = True
        sys.addaudithook(self._hear)

    def counts(self, path: str) -> bool:
        """Whether what is written there belongs to the run: no device, no cache, nothing that passes."""
        if f"{path}/".startswith(self._not_of_run) or "/__pycache__" in path:
            return False
        return not self._passes(path)

    def _passes(self, path: str) -> bool:
        name = self._temporary.name_of(path)
        return name != "" and name not in self.before

    def lasts(self, path: str) -> bool:
        """Whether what is read there may be the program's data."""
        return self.counts(path) and not self._temporary.name_of(path)

    def unkept(self) -> str:
        """A file of the program's that is in no snapshot; "" where there is none."""
        return next((path for path in self._unkept if os.path.lexists(path)), "")

    def made(self, path: str) -> bool:
        """Whether the run has written that file, or it is one of those in the temporary folder that pass."""
        return path in self.before or self._passes(path)

    def note(self, path: Any, asked: bool = False, new: bool = False) -> None:
        """The program is about to change what is there.

        Args:
            asked: by a function of a library whose work that is, as `torch.save`.
            new: which fails where there is something.
        """
        if isinstance(path, int) or not self.noting or os.getpid() != self._process or self._busy:
            return
        with self._busy:
            try:
                with self._lock:
                    place = place_of(os.fsdecode(path))
                    if self._passes(place):
                        self._take_in(place, asked, new)
                    self._note(place)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self.on_lost(error)

    def noted(self, path: str) -> str:
        """`path`, of which note was taken."""
        self.note(path, asked=True)
        return path

    def _take_in(self, place: str, asked: bool, new: bool) -> None:
        """What the program itself makes in the temporary folder is the run's, with all that comes into it."""
        there = os.path.lexists(place)
        if (new and there) or not (asked or started_by_program()):
            return
        name = self._temporary.name_of(place)
        if name == place and not there and self._temporary.may_be_kept(name):
            self._remember(place, ["absent"])
        elif asked or self._temporary.may_be_kept(name):
            self._unkept[place] = None

    def _note(self, place: str) -> None:
        if place in self.before or not self.counts(place):
            return
        # Of what the run has made in the temporary folder nothing was there, though a library has written it unheard.
        state = ["absent"] if self._temporary.name_of(place) else self._states.of(place)
        if state is None:
            return
        if state[0] == "folder":  # it is moved or removed, with all that is in it
            for name in posix.listdir(place):
                self._note(os.path.join(place, name))
        self._remember(place, state)

    def _remember(self, place: str, state: State) -> None:
        self.before[place] = state
        self._list.add(place, state)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _HEARD or not self.noting:  # some thirty times a step it is another: each `id` of a thing
            return
        try:
            if event == "open" and isinstance(args[2], int) and args[0] is not None:
                if not args[2] & WRITING:
                    self.on_read(args[0])
                elif not by_technique() and not os.path.isdir(args[0]):  # `tempfile` names the folder, besides
                    self.note(args[0], new=bool(args[2] & os.O_EXCL))
            elif event in WRITES and not by_technique():
                for path in changed_paths(event, args):
                    self.note(path, new=event == "os.mkdir")
            elif event == "sqlite3.connect":
                for ending in _OF_SQLITE:
                    self.note(os.fsdecode(args[0]) + ending)
            elif event in _STARTS and os.getpid() == self._process and started_by_program():
                self.on_started("forks a process" if event == "os.fork" else "starts another program")
        except (OSError, ValueError, TypeError, IndexError):
            return  # the program's own call fails for the same reason

    def states(self) -> dict[str, State]:
        """Of all files that were changed so far, as they are now.

        What Python keeps back of an open one stays there: the program may ask for a file's size, and a run that is made
        again keeps back the same.
        """
        with self._busy, self._lock:
            self._list.sync()
            return {path: self._states.of(path) or ["absent"] for path in self.before}

    def put_back(self, states: dict[str, State]) -> None:
        """Make them so again; those that are not named, as they were before the run.

        Raises:
            Damaged: a content that is needed is not what was kept; nothing was changed.
        """
        self.check(states)
        with self._busy:
            wanted = {**self.before, **states}
            links = _links_to_be(wanted)
            for path in sorted(wanted, reverse=True):  # what is in a folder before the folder
                if place_of(path) == path if path.startswith(links) else wanted[path][0] != kind_of(path):
                    remove(path)
            for path in sorted(wanted):
                if not path.startswith(links):
                    self._states.make(path, wanted[path])

    def check(self, states: dict[str, State]) -> None:
        """Whether they can be put back.

        Raises:
            Damaged: a content that is needed is not what was kept.
        """
        for path, state in {**self.before, **states}.items():
            if state[0] == "file" and not self.is_still(path, state):
                self.kept.check(state[1], path)

    def is_still(self, path: str, before: State) -> bool:
        """Whether the file there has the content of this state."""
        return before[0] == "file" and self._states.holds(path, before[1])

    def keep_only(self, states: list[dict[str, State]]) -> None:
        """Drop contents that neither these snapshots nor the beginning need."""
        self._states.keep_only(state for group in (self.before, *states) for state in group.values())


def _links_to_be(wanted: dict[str, State]) -> tuple[str, ...]:
    """Folders that are to be links: what lies below is another folder's, and where it is the run's it has a path of its
    own. Links that are to be something else are removed, before anything is done through them."""
    for path, state in wanted.items():
        if state[0] != "link" and os.path.islink(path):
            remove(path)
    return tuple(f"{path}/" for path, state in wanted.items() if state[0] == "link")


def started_by_program() -> bool:
    """Whether the innermost call that is not of Python's own library is one of the program's."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_python_file(file):
            return not is_library_file(file)
        frame = frame.f_back
    return False


def open_for_writing(place_of: Callable[[str], str | None]) -> list[tuple[int, str, int, int, int]]:
    """Handles of files for which `place_of` gives a path: handle, that path, position, block size and flags."""
    import fcntl

    found = []
    for name in sorted(posix.listdir("/proc/self/fd"), key=int):
        try:
            path = place_of(posix.readlink(f"/proc/self/fd/{name}"))
            if path is None:
                continue
            flags = fcntl.fcntl(int(name), fcntl.F_GETFL)
            if flags & os.O_ACCMODE != os.O_RDONLY:
                handle = int(name)
                place, blocks = os.lseek(handle, 0, os.SEEK_CUR), os.fstat(handle).st_blksize
                found.append((handle, path, place, blocks, flags))
        except OSError:
            continue
    return found
