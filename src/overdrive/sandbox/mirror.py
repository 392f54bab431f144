"""A copy-on-write view of the disks, kept as plain files: the arithmetic behind `redirect.py`.

A changed file `/home/u/log` lives as `<root>/files/home/u/log`; a removed one leaves a marker
`<root>/gone/home/u/log/.overdrive-gone`. Both are looked up on disk, so forked workers agree.
A copy outranks a marker. Removing a folder takes removing what is in it first, hence each entry has
its own marker and a folder made anew at the same place starts out empty.

Everything here calls `posix`, whose functions stay as they were when those of `os` are replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posix
import stat
from collections.abc import Sequence
from threading import get_ident
from typing import NoReturn

from overdrive.sandbox.mounts import is_within

GONE = ".overdrive-gone"
KERNEL_TREES = ("/proc", "/sys", "/dev")
MOST_LINKS = 40
MOST_REMEMBERED = 10_000


def fail(number: int, path: str) -> NoReturn:
    """Raise what the system call would have raised."""
    raise OSError(number, os.strerror(number), path)


def exists(path: str) -> bool:
    """`os.path.lexists`, which itself goes through the view."""
    try:
        posix.lstat(path)
    except (OSError, ValueError):
        return False
    return True


class Mirror:
    """Where each path of the script really is, and where a change to it goes."""

    def __init__(self, root: str, writable: Sequence[str]) -> None:
        self.files = os.path.join(root, "files")
        self.gone = os.path.join(root, "gone")
        self._writable = (*writable, *KERNEL_TREES)
        self._folders: dict[str, str] = {}
        posix.mkdir(self.files)
        posix.mkdir(self.gone)

    def is_outside(self, place: str) -> bool:
        """Whether the trial must not really write there."""
        return not is_within(place, self._writable)

    def refuses(self, path: str) -> bool:
        """Whether a write straight to `path`, without a look at the copies, must not happen."""
        path = os.path.join(posix.getcwd(), path)
        return not path.startswith(self.files + "/") and self.is_outside(self.locate(path))

    # Places: absolute paths as the script knows them, without symbolic links.

    def locate(self, path: str, follow: bool = True, links: int = 0) -> str:
        """The place that `path` means; `follow` says whether a link at its end counts."""
        path = os.path.join(self.current_folder(), path)
        if path.startswith(self.files + "/"):  # came from a handle or the working folder
            path = path[len(self.files) :]
        if is_within(path, KERNEL_TREES) and "/../" not in path:
            return path  # what looks like links in /proc are none
        head, tail = os.path.split(path.rstrip("/") or "/")
        if not tail:
            return "/"
        folder = self._locate_folder(head, links)
        if tail == ".":
            return folder
        if tail == "..":
            return os.path.dirname(folder)
        place = os.path.join(folder, tail)
        if follow:
            try:
                target = posix.readlink(self.actual(place))
            except OSError:
                return place
            if links >= MOST_LINKS:
                fail(errno.ELOOP, path)
            return self.locate(os.path.join(folder, target), True, links + 1)
        return place

    def _locate_folder(self, path: str, links: int) -> str:
        known = self._folders.get(path)
        if known is None:
            if len(self._folders) >= MOST_REMEMBERED:
                self._folders.clear()
            known = self._folders[path] = self.locate(path, True, links)
        return known

    def forget(self) -> None:
        """Look links up anew; to be called when one was made or something was moved."""
        self._folders.clear()

    def current_folder(self) -> str:
        """The working folder as the script knows it."""
        folder = posix.getcwd()
        return folder[len(self.files) :] if folder.startswith(self.files + "/") else folder

    def actual(self, place: str) -> str:
        """Where the present content of `place` is; a path that doesn't exist if it's gone."""
        if not self.is_outside(place):
            return place
        copy = self.files + place
        if exists(copy) or self._is_marked_gone(place):
            return copy
        return place

    def present(self, place: str) -> bool:
        """Whether there is something at `place`."""
        return exists(self.actual(place))

    def is_folder(self, place: str) -> bool:
        """Whether there is a folder, not a link to one, at `place`."""
        try:
            return stat.S_ISDIR(posix.lstat(self.actual(place)).st_mode)
        except OSError:
            return False

    def is_touched(self, folder: str) -> bool:
        """Whether the listing of `folder` may differ from the one on disk."""
        return self.is_outside(folder) and (exists(self.files + folder) or exists(self.gone + folder))

    def names(self, folder: str) -> list[str]:
        """What the script finds in `folder`."""
        if not self.is_touched(folder):
            return posix.listdir(folder)
        if not self.is_folder(folder):
            fail(errno.ENOTDIR if self.present(folder) else errno.ENOENT, folder)
        copies = self._listing(self.files + folder)
        marked = self._listing(self.gone + folder)
        originals = self._listing(folder)
        gone = {name for name in marked if self._is_marked_gone(os.path.join(folder, name))}
        return [*copies, *(name for name in originals if name not in gone | set(copies))]

    @staticmethod
    def _listing(folder: str) -> list[str]:
        try:
            return posix.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    # Changes: each returns the real path to make it at, or makes it.

    def to_create(self, place: str) -> str:
        """Where to put something new at `place`, whose folder must be there."""
        if not self.is_outside(place):
            return place
        parent = os.path.dirname(place)
        if not self.is_folder(parent):
            fail(errno.ENOTDIR if self.present(parent) else errno.ENOENT, place)
        if not exists(self.files + parent) and not posix.access(parent, os.W_OK):
            fail(errno.EACCES, place)
        self._make_copy_folder(parent)
        return self.files + place

    def to_change(self, place: str) -> str:
        """Where to change what is at `place`: a copy, made now if there is none."""
        actual = self.actual(place)
        if not self.is_outside(place) or actual != place:
            return actual
        mode = posix.lstat(place).st_mode
        if stat.S_ISDIR(mode):
            self._make_copy_folder(place)
            return self.files + place
        self._make_copy_folder(os.path.dirname(place))
        copy_entry(place, self.files + place)
        return self.files + place

    def _make_copy_folder(self, place: str) -> None:
        copy = self.files + place
        if place == "/" or exists(copy):
            return
        self._make_copy_folder(os.path.dirname(place))
        with contextlib.suppress(FileExistsError):  # another worker was quicker
            posix.mkdir(copy)
        if exists(place):
            copy_attributes(place, copy)

    def remove(self, place: str) -> None:
        """Take away a file, or a folder in which nothing is left."""
        actual = self.actual(place)
        folder = stat.S_ISDIR(posix.lstat(actual).st_mode)
        if folder and self.names(place):
            fail(errno.ENOTEMPTY, place)
        if self.is_outside(place) and actual == place:
            if not posix.access(os.path.dirname(place), os.W_OK):
                fail(errno.EACCES, place)
        else:
            posix.rmdir(actual) if folder else posix.unlink(actual)
        self._mark_gone(place)
        self._folders.clear()

    def _mark_gone(self, place: str) -> None:
        if self.is_outside(place) and exists(place):
            self._folders.clear()
            made = ""
            for name in ("", *place.strip("/").split("/")):
                made = os.path.join(made, name) if made else self.gone
                if not exists(made):
                    with contextlib.suppress(FileExistsError):
                        posix.mkdir(made)
            handle = posix.open(os.path.join(made, GONE), os.O_CREAT | os.O_WRONLY, 0o600)
            posix.close(handle)

    def _is_marked_gone(self, place: str) -> bool:
        return exists(f"{self.gone}{place}/{GONE}")

    def move(self, source: str, target: str) -> None:
        """What rename(2) does, across the border between originals and copies."""
        actual = self.actual(source)
        source_is_folder = stat.S_ISDIR(posix.lstat(actual).st_mode)
        if source == target:
            return
        if self.present(target):
            if source_is_folder:
                if not self.is_folder(target):
                    fail(errno.ENOTDIR, target)
                self.remove(target)
            elif self.is_folder(target):
                fail(errno.EISDIR, target)
        self._folders.clear()
        destination = self.to_create(target)
        original = self.is_outside(source) and exists(source)
        if source_is_folder:
            if original or not _renamed(actual, destination):
                posix.mkdir(destination)
                copy_attributes(actual, destination)
                for name in self.names(source):
                    self.move(os.path.join(source, name), os.path.join(target, name))
                self.remove(source)
            return
        if original and actual == source:
            copy_entry(source, destination)
        elif not _renamed(actual, destination):
            copy_entry(actual, destination)
            posix.unlink(actual)
        if original:
            self._mark_gone(source)


def _renamed(source: str, target: str) -> bool:
    """False where it has to be copied: Landlock before Linux 5.19 refuses all renames into another folder."""
    try:
        posix.rename(source, target)
    except OSError as refusal:
        if refusal.errno != errno.EXDEV:
            raise
        return False
    return True


def copy_entry(source: str, target: str) -> None:
    """Copy one file, link or other thing that is no folder, with its times and permissions."""
    mode = posix.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        with contextlib.suppress(FileNotFoundError):
            posix.unlink(target)
        posix.symlink(posix.readlink(source), target)
        return
    if not stat.S_ISREG(mode):
        fail(errno.EXDEV, source)
    reader = posix.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A half-made copy must not be taken for the file by another process.
        partial = f"{target}.{os.getpid()}.{get_ident()}.partial"
        writer = posix.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while posix.sendfile(writer, reader, None, 1 << 30):
                pass
        finally:
            posix.close(writer)
    finally:
        posix.close(reader)
    copy_attributes(source, partial)
    posix.rename(partial, target)


def copy_attributes(source: str, target: str) -> None:
    """Give `target` the permissions and times of `source`; its owner stays this user."""
    status = posix.stat(source)
    posix.chmod(target, stat.S_IMODE(status.st_mode))
    posix.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
