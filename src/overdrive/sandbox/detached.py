"""Cuts what a forked process shares with the program: places in open files, memory that both may write to, pipes.

A fork shares open files with their offsets, and mappings that were made to be shared. What the one reads or writes
there, the other finds read or written: a batch that loader workers left in shared memory, a semaphore, a data file.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import resource
import stat
from collections.abc import Collection

from overdrive.sandbox.landlock import allow_writes_only

MOST_SHARED = 256 << 20  # bytes of memory to write to that are copied
_MAYMOVE_FIXED = 1 | 2  # mremap: to that very address
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Attached(Exception):
    """It could not be cut off; the message is the reason, for people."""


def own_memory() -> None:
    """Put a private copy in the place of all memory that is shared and can be written to.

    Raises:
        Attached: it is too much, or the system does not let us.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    pieces = _shared_pieces()
    if sum(end - start for start, end in pieces) > MOST_SHARED:
        raise Attached("it shares much memory with other processes")
    for start, end in pieces:
        copy = libc.mmap(None, end - start, _PROTECTION, _PRIVATE, -1, 0)
        if copy in (None, ctypes.c_void_p(-1).value):
            raise Attached("its shared memory could not be copied")
        ctypes.memmove(copy, start, end - start)
        if libc.mremap(copy, end - start, end - start, _MAYMOVE_FIXED, start) != start:
            raise Attached("its shared memory could not be copied")


def _shared_pieces() -> list[tuple[int, int]]:
    with open("/proc/self/maps", "rb", buffering=0) as maps:
        lines = [line.split(maxsplit=2) for line in maps.readall().splitlines()]
    spans = [line[0].split(b"-") for line in lines if line[1].startswith(b"rw") and line[1].endswith(b"s")]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


def own_files(keep: Collection[int]) -> None:
    """Open all files anew, for reading only, each at the place where it is; pipes and the like lead nowhere.

    What is open for writing only is left: `forks.effects.cut_off` is for that.
    """
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number in keep or number == nowhere:
            continue
        with contextlib.suppress(OSError):
            mode, access = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            if access == os.O_WRONLY or stat.S_ISDIR(mode):
                continue
            if stat.S_ISREG(mode):
                _open_anew(number)
            elif not stat.S_ISCHR(mode) or os.isatty(number):  # /dev/urandom and its like may be read
                os.dup2(nowhere, number)


def _open_anew(number: int) -> None:
    try:
        own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it may be read by us no more
        os.close(number)
        return
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, number, inheritable=False)
    os.close(own)


def write_nothing() -> None:
    """From here on no file is made, opened for writing or removed; where the kernel has no Landlock, none is opened."""
    if not allow_writes_only([]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
