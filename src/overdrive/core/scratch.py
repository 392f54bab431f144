"""Folders of our own in the machine's temporary one, and the end of those whose makers were killed.

Who uses such a folder holds a shared lock on a file in it, which the kernel takes back when that process and its forks
are gone, however they went. `docs/decisions/085-scratch-of-the-dead.md` has what that proves, and what it does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_BEGINS = "overdrive-"
_LOCK = ".in-use"
_BOOT = "/proc/sys/kernel/random/boot_id"
_held: dict[str, int] = {}


def made(prefix: str) -> Path:
    """A new private folder, to be given to `discard` or `keep`; `sweep` takes it once nobody alive holds it."""
    assert prefix.startswith(_BEGINS)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    hold(folder)
    return folder


@contextlib.contextmanager
def passing(prefix: str) -> Iterator[Path]:
    """The same, until the block is left."""
    folder = made(prefix)
    try:
        yield folder
    finally:
        discard(folder)


def hold(folder: Path) -> None:
    """As long as this process lives, `folder` is in use. Where there are no locks it is never swept."""
    with contextlib.suppress(OSError):
        # Not one that processes inherit which this one starts: they would hold it when it is gone.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        _held[str(folder)] = handle = os.open(folder / _LOCK, flags, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        if not os.fstat(handle).st_size:
            os.write(handle, _boot())  # after the lock: until then nobody sweeps it


def keep(folder: Path) -> None:
    """People were told of it: it stays when all who used it are gone."""
    with contextlib.suppress(OSError):
        os.unlink(folder / _LOCK)


def discard(folder: Path) -> None:
    """Remove it, whatever was left there. What cannot be removed now, as what a process has mounted and looks at to its
    end, a later start sweeps."""
    _remove(folder)
    handle = _held.pop(str(folder), None)
    if handle is not None:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Overlayfs and scripts leave folders without permissions, at which a plain `rmtree` stops. Its lock goes last, and
    with all else: by it somebody knows that a folder may be swept."""
    for parent, names, _files in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):  # gone meanwhile: a process that was killed may be slow to die
                    os.chmod(path, 0o700)
    with contextlib.suppress(OSError):
        for each in list(folder.iterdir()):
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != _LOCK:
                each.unlink(missing_ok=True)
        if {each.name for each in folder.iterdir()} <= {_LOCK}:
            (folder / _LOCK).unlink(missing_ok=True)
            folder.rmdir()


def sweep() -> None:
    """Remove the folders of this user whose users are all gone; for commands that take seconds anyway."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_BEGINS) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        _sweep(Path(entry.path))


def _sweep(folder: Path) -> None:
    """
    Raises:
        OSError: it has no lock, or somebody holds it.
    """
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        boot = _boot()
        if not boot or os.read(handle, len(boot) + 1) != boot:
            return
        _remove(folder)
    finally:
        os.close(handle)


def _boot() -> bytes:
    """Which start of which machine this is: a lock says nothing of processes elsewhere, where folders are shared."""
    with contextlib.suppress(OSError):
        return Path(_BOOT).read_bytes().strip()
    return b""
