"""Says to other machines that a table on a file server is in use here.

A file that another machine deletes is gone, though it is mapped: the next page of it that is read ends the process with
SIGBUS. (One that this machine deletes lives on until it is let go.) Locks do not tell: many mounts keep them to their
own machine. So each process that has a table mapped leaves an entry in its folder and renews it while it reads. What
another machine uses is moved out of the way if need be, and deleted only when its entries have not been renewed for
long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from pathlib import Path

_ENTRY = "used-"
ENTRIES = f"{_ENTRY}*"  # their names, for who copies a table
_RENEWED = 600.0  # seconds between two renewals
_FRESH = 24 * 3600.0  # so long nobody deletes: a program may evaluate for hours, and clocks differ


def this_machine() -> str:
    """What no other machine has. Processes of two machines do not see the same in a mapped file at the same time,
    though both have mounted its folder."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def used_elsewhere(place: Path) -> bool:
    """Whether another machine uses the table in this folder, or has used it not long ago and did not say that it has
    ended."""
    with contextlib.suppress(OSError):
        for each in place.glob(ENTRIES):
            if not each.name.startswith(_own()):
                with contextlib.suppress(OSError):
                    if time.time() - each.stat().st_mtime < _FRESH:
                        return True
    return False


class InUse:
    """This process's entry. It goes when this object goes, or when the process ends by itself."""

    def __init__(self, place: Path) -> None:
        """`place`: the table's folder. Where nothing can be written there, no entry is left."""
        self._file = -1
        self._next = 0.0
        self._path = [place / f"{_own()}{os.getpid()}-{os.urandom(6).hex()}"]
        with contextlib.suppress(OSError):
            # Held open: it is renewed wherever the folder is moved to.
            self._file = os.open(self._path[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            for each in place.glob(ENTRIES):
                if time.time() - each.stat().st_mtime > 2 * _FRESH:
                    each.unlink(missing_ok=True)
        weakref.finalize(self, _end, os.getpid(), self._file, self._path)

    def moved(self, place: Path) -> None:
        """The folder has another name."""
        self._path[0] = place / self._path[0].name

    def renew(self) -> None:
        """Whenever something is read: takes no time."""
        now = time.monotonic()
        if now >= self._next and self._file >= 0:
            self._next = now + _RENEWED
            with contextlib.suppress(OSError):
                os.utime(self._file)


def _own() -> str:
    return f"{_ENTRY}{this_machine()}-"


def _end(process: int, file: int, path: list[Path]) -> None:
    if file < 0:
        return
    with contextlib.suppress(OSError):
        os.close(file)
    if process == os.getpid():  # a fork's end is not the table's
        with contextlib.suppress(OSError):
            path[0].unlink()
