"""Files that this process may write to through a mapping: of such writes the kernel tells nobody.

Linux 6.11 answers that by itself (`PROCMAP_QUERY`), in some 60 µs; before that /proc/self/maps is read, in some 900: a
process that has imported PyTorch has a thousand mappings. Source: Linux, include/uapi/linux/fs.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
from functools import cache

_QUERY = 0xC0686611
# Shared, writable, of a file, at an address or after it.
_WANTED = 0x2 | 0x8 | 0x10 | 0x20
_FIELDS = struct.Struct("9Q4I2Q")
_END, _NAME_SIZE = 4, 11  # among those fields
_LONGEST = 4096


class _Made:
    """Mappings that were made from Python since there is somebody who asks. An audit hook cannot be taken away."""

    count = 0
    heard = False


def mappings_made() -> int:
    """How many; of a file that was open before, nothing else tells."""
    if not _Made.heard:
        _Made.heard = True
        sys.addaudithook(_hear)
    return _Made.count


def _hear(event: str, _: object) -> None:
    if event == "mmap.__new__":
        _Made.count += 1


class _Kernel:
    """Whether the kernel answers; until it says that it does not."""

    asked = True
    name = ctypes.create_string_buffer(_LONGEST)


def mapped_for_writing() -> set[str]:
    """Their real paths."""
    try:
        if _Kernel.asked and (found := _told(_own_maps(os.getpid()))) is not None:
            return found
        _Kernel.asked = False
        with open("/proc/self/maps", "rb", buffering=0) as maps:
            return {
                os.fsdecode(line.split(maxsplit=5)[-1].rstrip(b"\n"))
                for line in maps.readall().splitlines()
                if b" rw-s " in line
            }
    except OSError:
        return set()


def shared_places() -> list[tuple[int, int]] | None:
    """Where memory begins and ends that other processes may share; None where that is not known."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            shared = [line.split(maxsplit=1)[0].split("-") for line in maps if line.split(maxsplit=2)[1].endswith("s")]
    except OSError:
        return None
    return [(int(first, 16), int(last, 16)) for first, last in shared]


def is_mapped_for_writing(path: str) -> bool:
    return os.path.realpath(path) in mapped_for_writing()


@cache
def _own_maps(_: int) -> int:
    """Opened once in each process: it tells of the one that opened it."""
    return os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)


def _told(maps: int) -> set[str] | None:
    """None where the kernel does not know the question."""
    found: set[str] = set()
    name = _Kernel.name
    address = 0
    while True:
        question = bytearray(
            _FIELDS.pack(_FIELDS.size, _WANTED, address, 0, 0, 0, 0, 0, 0, 0, 0, _LONGEST, 0, ctypes.addressof(name), 0)
        )
        try:
            fcntl.ioctl(maps, _QUERY, question)
        except OSError as error:
            return found if error.errno == errno.ENOENT else None
        fields = _FIELDS.unpack(question)
        if fields[_NAME_SIZE]:
            found.add(os.fsdecode(name.value))
        address = fields[_END]
