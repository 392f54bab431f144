"""What one process does at a time, by a lock that the system takes back with the process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def one_at_a_time(folder: Path, what: str) -> Iterator[str]:
    """This process does it on this machine, until the block is left. Gives who is at it already, else "".

    Where there are no locks, or no place for one, nobody is seen.
    """
    name = hashlib.sha256(f"{what}\0{platform.node()}".encode()).hexdigest()[:32]
    path = folder / f"{name}.lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield ""
        return
    other = _taken(handle)
    try:
        yield other
    finally:
        if not other:
            with contextlib.suppress(OSError):
                path.unlink()  # before the lock goes: who comes now makes another file
        os.close(handle)


def _taken(handle: int) -> str:
    """By whom; "" where it is ours now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        told = os.pread(handle, 20, 0)
        return f"process {int(told)}" if told.isdigit() else "a process that does not say which"
    except OSError:
        return ""
    return ""
