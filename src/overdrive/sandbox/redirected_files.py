"""Python's functions for files, going through a `Mirror`: what `redirect.py` puts in their place."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import posix
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from overdrive.core.flag import FlagOfThread
from overdrive.core.in_place import in_place_of
from overdrive.sandbox.listings import Entry, Listing
from overdrive.sandbox.mirror import Mirror, exists, fail
from overdrive.sandbox.patches import Patches

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Set while the real `open` runs with an opener: it tells audit hooks of the path as the script
# knows it, before the opener turns it into another.
within_open = FlagOfThread()


class Redirection:
    """The replaced functions; `exit` puts the original ones back."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.patches = Patches()

    def enter(self) -> None:
        """Replace the functions of `os` and `open`."""
        for name in ("stat", "access", "listxattr", "getxattr", "statvfs", "pathconf"):
            self.patches.set_os(name, self._follower(name, self.mirror.actual))
        for name in ("lstat", "readlink"):
            self.patches.set_os(name, self._follower(name, self.mirror.actual, follow=False))
        for name in ("truncate", "utime", "chmod", "chown", "setxattr", "removexattr"):
            self.patches.set_os(name, self._follower(name, self.mirror.to_change))
        self.patches.set_os("lchown", self._follower("lchown", self.mirror.to_change, False))
        for name in ("mkdir", "mkfifo", "mknod"):
            self.patches.set_os(name, self._follower(name, self._to_make_new, follow=False))
        for function in (self.open, self.unlink, self.rmdir, self.rename, self.replace, self.link,
                         self.symlink, self.listdir, self.scandir, self.chdir, self.getcwd):  # fmt: skip
            self.patches.set_os(function.__name__, function)
        self.patches.set_os("remove", self.unlink)
        real_open = builtins.open
        opener = self._opening(real_open)
        self.patches.set(builtins, "open", opener)
        self.patches.set(io, "open", opener)
        self.patches.set_copies("open", real_open, opener)
        if bz2 := sys.modules.get("bz2"):  # it has a copy under a name of its own; shutil imports it, where it is built
            self.patches.set(bz2, "_builtin_open", opener)
        # Temporary files took a copy of the function that will remove them.
        for name in ("close", "cleanup"):
            closer = vars(vars(tempfile)["_TemporaryFileCloser"]).get(name)
            if posix.unlink in (getattr(closer, "__defaults__", None) or ()):
                changed = [self.unlink if it is posix.unlink else it for it in closer.__defaults__]
                self.patches.set(closer, "__defaults__", tuple(changed))
        # Its other way works with folder handles, at which a merged folder can't be seen.
        self.patches.set(shutil, "_use_fd_functions", False)

    def exit(self) -> None:
        """Put the original functions back."""
        self.patches.undo()

    def path_to_read(self, path: str) -> str:
        """The real path of what the script finds at `path`."""
        return self.mirror.actual(self.mirror.locate(path))

    def path_to_write(self, path: str) -> str:
        """A real path at which to write what the script will find at `path`."""
        self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, close=True)
        return self.path_to_read(path)

    def path_in_mode(self, path: str, mode: str) -> str:
        """A real path for what HDF5 opens at `path` in this mode: `r`, `r+`, `w`, `a`, `x` or `w-`."""
        if mode == "a":
            mode = "r+" if os.path.exists(path) else "x"
        if mode in ("r+", "w"):
            self.open(path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC) * (mode == "w") | os.O_CLOEXEC, close=True)
        elif mode in ("x", "w-"):
            self.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, close=True)
            real = self.path_to_read(path)
            posix.unlink(real)  # it makes the file itself
            return real
        return self.path_to_read(path)

    def folder_to_write(self, path: str) -> str:
        """A real folder in which to write what the script will find in the one at `path`; made where there is none."""
        os.makedirs(path, exist_ok=True)
        return self.mirror.to_change(self._place(path))

    def _place(self, path: Any, dir_fd: int | None = None, follow: bool = True) -> str:
        name = os.fsdecode(path)
        if dir_fd is not None and not name.startswith("/"):
            name = os.path.join(posix.readlink(f"/proc/self/fd/{dir_fd}"), name)
        if not name:
            fail(errno.ENOENT, name)
        return self.mirror.locate(name, follow)

    def _follower(self, name: str, convert: Callable[[str], str], follow: bool = True) -> Callable[..., Any]:
        """The function `name` of os, for a path that `convert` turns into the real one."""
        real = getattr(posix, name)

        @functools.wraps(real)
        def redirected(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int):
                return real(path, *args, **kwargs)
            links = kwargs.get("follow_symlinks", True) and follow
            place = self._place(path, kwargs.pop("dir_fd", None), links)
            try:
                return real(convert(place), *args, **kwargs)
            except OSError as refusal:
                refusal.filename = path  # not the copy, of which the script knows nothing
                raise

        return redirected

    def _to_make_new(self, place: str) -> str:
        if self.mirror.present(place):
            fail(errno.EEXIST, place)
        return self.mirror.to_create(place)

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opener(path: Any, flags: int) -> int:
            return self.open(path, flags, 0o666)

        @in_place_of(real)
        def open_file(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int):
                return real(file, *args, **kwargs)
            if len(args) <= 6 and kwargs.get("opener") is None:
                kwargs["opener"] = opener
            with within_open:
                return real(file, *args, **kwargs)

        return open_file

    def open(
        self, path: Any, flags: int, mode: int = 0o777, *,
        dir_fd: int | None = None, close: bool = False,
    ) -> int:  # fmt: skip
        """os.open; with `close`, only makes the file ready."""
        new_only = bool(flags & os.O_CREAT and flags & os.O_EXCL)
        place = self._place(path, dir_fd, follow=not (new_only or flags & os.O_NOFOLLOW))
        real, flags, mode = self._to_open(place, flags, mode, new_only)
        try:
            handle = posix.open(real, flags, mode)
        except OSError as refusal:
            refusal.filename = path
            raise
        if close:
            posix.close(handle)
        return handle

    def _to_open(self, place: str, flags: int, mode: int, new_only: bool) -> tuple[str, int, int]:
        actual = self.mirror.actual(place)
        if not flags & WRITING or not self.mirror.is_outside(place):
            return actual, flags, mode
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            return self.mirror.files, flags, mode
        try:
            status = posix.lstat(actual)
        except OSError:
            real = self.mirror.to_create(place) if flags & os.O_CREAT else actual
            return real, flags, mode
        if new_only:
            fail(errno.EEXIST, place)
        if not stat.S_ISREG(status.st_mode):
            return actual, flags, mode  # a folder fails by itself; pipes and devices are no files
        if not posix.access(actual, os.W_OK):
            fail(errno.EACCES, place)
        if flags & os.O_TRUNC:  # no need to copy what will be thrown away
            return self.mirror.to_create(place), flags | os.O_CREAT, stat.S_IMODE(status.st_mode)
        return self.mirror.to_change(place), flags, mode

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """os.unlink and os.remove."""
        place = self._place(path, dir_fd, follow=False)
        if self.mirror.is_folder(place):
            fail(errno.EISDIR, place)
        self._change(self.mirror.remove, place, path)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """os.rmdir."""
        place = self._place(path, dir_fd, follow=False)
        if self.mirror.present(place) and not self.mirror.is_folder(place):
            fail(errno.ENOTDIR, place)
        self._change(self.mirror.remove, place, path)

    @staticmethod
    def _change(change: Callable[[str], None], place: str, path: Any) -> None:
        try:
            change(place)
        except OSError as refusal:
            refusal.filename = path
            raise

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """os.rename."""
        source = self._place(src, src_dir_fd, follow=False)
        self.mirror.move(source, self._place(dst, dst_dir_fd, follow=False))

    def replace(self, src: Any, dst: Any, **folders: Any) -> None:
        """os.replace, which is os.rename on these systems."""
        self.rename(src, dst, **folders)

    def link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None, follow_symlinks: bool = True,
    ) -> None:  # fmt: skip
        """os.link; the first name is copied before, lest the second lead to the original."""
        source = self.mirror.to_change(self._place(src, src_dir_fd, follow=False))
        target = self._to_make_new(self._place(dst, dst_dir_fd, follow=False))
        posix.link(source, target, follow_symlinks=follow_symlinks)

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        """os.symlink."""
        posix.symlink(src, self._to_make_new(self._place(dst, dir_fd, follow=False)))
        self.mirror.forget()

    def listdir(self, path: Any = ".") -> list[Any]:
        """os.listdir, of originals and copies together."""
        place = self._folder_place(path)
        if not self.mirror.is_touched(place):
            return posix.listdir(path)
        names = self.mirror.names(place)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def scandir(self, path: Any = ".") -> Any:
        """os.scandir, of originals and copies together."""
        place = self._folder_place(path)
        if not self.mirror.is_touched(place):
            return posix.scandir(path)
        if self.mirror.present(place) and not self.mirror.is_folder(place):
            fail(errno.ENOTDIR, place)
        prefix = "" if isinstance(path, int) else os.fspath(path)
        return Listing([Entry(name, prefix) for name in self.listdir(path)])

    def _folder_place(self, path: Any) -> str:
        if path is None:
            path = "."
        return self._place(".", path) if isinstance(path, int) else self._place(path)

    def chdir(self, path: Any) -> None:
        """os.chdir; into the original where there is one, for the programs started from there."""
        if isinstance(path, int):
            return posix.chdir(path)
        place = self._place(path)
        actual = self.mirror.actual(place)
        if not exists(actual):
            fail(errno.ENOENT, os.fsdecode(path))
        posix.chdir(place if os.path.isdir(actual) and exists(place) else actual)

    def getcwd(self) -> str:
        """os.getcwd."""
        return self.mirror.current_folder()
