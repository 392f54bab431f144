"""Memory that all ranks of one machine share, and what they exchange through it: slots, and sums of gradients.

gloo sends between the processes of one machine as between two machines: a message takes 0.2 ms and wakes a thread, and
4 MB take 4 ms. Here a rank writes, says so by a number that only grows, and reads what the others wrote.

Only on x86-64, whose cores see each other's writes in their order. A rank that ends is noticed by its lock on a byte of
the file, which the system takes back.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from overdrive.machine.shared_memory import PLACE, USABLE_SHARE, free_shared_memory

_ORDERED = ("x86_64", "AMD64")
_LINE = 64  # bytes of a cache line: what one rank writes is not in the line of another's
_NAME = "overdrive-ranks-"  # of a file, and the process of rank 0
_START = 120.0  # seconds: longer than all ranks take to open it
_HERE = 0xA5
_MOST_RANKS = mmap.PAGESIZE // _LINE
_SLOT = 1 << 20  # bytes; of all ranks together no more than:
_ALL_SLOTS = 16 << 20
_LOOKS = 300  # some 20 us: then the core is left to whom it may be of use
_BUSY = 2e-3  # seconds
_NAP = 5e-5
_ASKED = 20e-3  # seconds after which it is looked whether the other one lives, each time


class Speaks(Protocol):
    """Of a group, what it takes to agree on something."""

    rank: int
    size: int

    def told_by_first(self, thing: Any, what: str) -> Any: ...

    def of_all(self, numbers: Sequence[int], what: str) -> list[list[int]]: ...


@dataclass(frozen=True)
class _File:
    """Open, mapped, and without a name."""

    number: int
    bytes: memoryview

    @classmethod
    def among(cls, group: Speaks, size: int) -> _File | None:
        """One of so many bytes that all ranks have; None on all of them where one has not. All ask at the same time."""
        if platform.machine() not in _ORDERED or group.size > _MOST_RANKS:
            return None
        path = _made(size) if group.rank == 0 else ""
        path = group.told_by_first(path, "memory that is shared")
        try:
            file = cls._opened(path, size, group.rank) if path else None
            group.of_all([0], "memory that is shared")  # each has written its byte
        finally:
            if path and group.rank == 0:
                with contextlib.suppress(FileNotFoundError):  # swept, from where this process is not seen
                    os.unlink(path)
        sees = file is not None and all(file.bytes[rank * _LINE] == _HERE for rank in range(group.size))
        return file if all(each == [1] for each in group.of_all([int(sees)], "memory that is shared")) else None

    @classmethod
    def _opened(cls, path: str, size: int, rank: int) -> _File | None:
        try:
            number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
            file = cls(number, memoryview(mmap.mmap(number, size)))
        except (OSError, ValueError):
            return None
        file.bytes[rank * _LINE] = _HERE
        return file

    def lives(self, rank: int) -> bool:
        try:
            fcntl.lockf(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return True
        with contextlib.suppress(OSError):
            fcntl.lockf(self.number, fcntl.LOCK_UN, 1, rank)
        return False


def _sweep() -> None:
    """Those of rank 0s that were killed before all others had opened theirs: they are memory until the machine ends."""
    now = time.clock_gettime(time.CLOCK_REALTIME)  # `time.time` is the program's own
    with contextlib.suppress(OSError), os.scandir(PLACE) as entries:
        for entry in entries:
            process, _, rest = entry.name.removeprefix(_NAME).partition("-")
            if not (entry.name.startswith(_NAME) and process.isdigit() and rest):
                continue
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                # Of a container that shares the place no process is seen, but all ranks of its run come in a minute.
                old = now - found.st_mtime > _START
                if old and found.st_uid == os.geteuid() and not os.path.exists(f"/proc/{process}"):
                    os.unlink(entry.path)


def _made(size: int) -> str:
    """The path of a new file with all of its memory; "": there is no room. A full place ends a process that writes."""
    _sweep()
    if size > USABLE_SHARE * (free_shared_memory() or 0):
        return ""
    # No name by `tempfile`, whose next one would be another on this rank than on others.
    path = f"{PLACE}/{_NAME}{os.getpid()}-{time.monotonic_ns():x}"
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return ""
    try:
        os.posix_fallocate(number, 0, size)
    except OSError:
        os.unlink(path)
        return ""
    finally:
        os.close(number)
    return path


class ProcessEnded(RuntimeError):
    """That of another rank, which is waited for."""

    def __init__(self) -> None:
        super().__init__("its process has ended")


class SharedSlots:
    """Two for each rank, used in turn: who has come to an exchange has read what was told in the one before."""

    def __init__(self, file: _File, rank: int, ranks: int, size: int) -> None:
        self.size = size
        self._file, self._rank, self._ranks = file, rank, ranks
        numbers = file.bytes[mmap.PAGESIZE : 2 * mmap.PAGESIZE].cast("q")
        self._counts, self._stride = numbers, _LINE // 8
        self._slots = file.bytes[2 * mmap.PAGESIZE :]
        self._others = [each for each in range(ranks) if each != rank]
        self._count = 0  # of exchanges

    @classmethod
    def among(cls, group: Speaks) -> SharedSlots | None:
        """None where the ranks have no memory in common."""
        size = min(_SLOT, _ALL_SLOTS // (2 * group.size) // mmap.PAGESIZE * mmap.PAGESIZE)
        file = _File.among(group, 2 * mmap.PAGESIZE + 2 * group.size * size)
        return None if file is None else cls(file, group.rank, group.size, size)

    def close(self) -> None:
        """Nothing is exchanged any more: the memory is free once all ranks have come here."""
        os.close(self._file.number)

    @property
    def own(self) -> memoryview:
        return self._slot(self._rank, self._count + 1)

    def exchange(self) -> None:
        self._count += 1
        self._counts[self._rank * self._stride] = self._count
        for other in self._others:
            if self._counts[other * self._stride] < self._count:
                self._wait_for(other)

    def of(self, rank: int) -> memoryview:
        return self._slot(rank, self._count)

    def _slot(self, rank: int, count: int) -> memoryview:
        first = (count % 2 * self._ranks + rank) * self.size
        return self._slots[first : first + self.size]

    def _wait_for(self, other: int) -> None:
        counts, place, count = self._counts, other * self._stride, self._count
        for _ in range(_LOOKS):
            if counts[place] >= count:
                return
        began = asked = time.monotonic()
        while counts[place] < count:
            now = time.monotonic()
            if now < began + _BUSY:
                os.sched_yield()
                continue
            time.sleep(_NAP)
            if now > asked + _ASKED:
                asked = now
                if not self._file.lives(other) and counts[place] < count:
                    raise ProcessEnded


@dataclass
class SharedSum:
    """A sum over ranks that is under way.

    Attributes:
        parts: what it is the sum of, once it is finished; flat.
        finished: whether the parts may be read.
    """

    parts: list[torch.Tensor]
    finished: bool = False

    def share(self, rank: int) -> None:
        """With more than two ranks: that rank sums its share of the elements, in the place of its own."""
        first, last = self._shares()[rank]
        own = self.parts[rank][first:last]
        total = self.parts[0][first:last].clone()
        for part in self.parts[1:]:
            total += part[first:last]
        own.copy_(total)

    def gather(self) -> None:
        """All ranks have summed their shares."""
        self.parts = [torch.cat([part[slice(*ends)] for part, ends in zip(self.parts, self._shares(), strict=True)])]

    def _shares(self) -> list[tuple[int, int]]:
        elements, ranks = len(self.parts[0]), len(self.parts)
        return [(rank * elements // ranks, (rank + 1) * elements // ranks) for rank in range(ranks)]


class SharedSums:
    """Rooms for what ranks sum: each writes its own there, and once all have, each adds up what it needs.

    They are as large as what was to be summed between two calls of `free` before: what finds no room is summed
    otherwise. All ranks ask for the same, in the same order.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._file: _File | None = None
        self._size = 0  # bytes of a rank's room
        self._used = self._wanted = 0
        self._grows = True

    def begin(self, parts: Sequence[torch.Tensor], kind: torch.dtype) -> SharedSum | None:
        """Of these, one after the other, as numbers of that kind; flat ones, on the CPU. None: there is no room."""
        elements = sum(each.numel() for each in parts)
        needed = -(-elements * kind.itemsize // _LINE) * _LINE
        first, self._wanted = self._used, self._wanted + needed
        if self._file is None or not elements or first + needed > self._size:
            return None
        self._used += needed
        places = [mmap.PAGESIZE + rank * self._size + first for rank in range(self._ranks)]
        rooms = [torch.frombuffer(self._file.bytes, dtype=kind, count=elements, offset=each) for each in places]
        torch.cat([*parts], out=rooms[self._rank])
        return SharedSum(rooms)

    def finish(self, sums: Sequence[SharedSum], meet: Callable[[], Any]) -> None:
        """Have the parts of all these be read. `meet`: has all ranks meet, who finish the same."""
        meet()
        if self._ranks > 2:
            for each in sums:
                each.share(self._rank)
            meet()
            for each in sums:
                each.gather()
        for each in sums:
            each.finished = True

    @property
    def to_be_freed(self) -> bool:
        """Whether `free` is to be called, after all ranks have said that they have read what was summed."""
        return self._used > 0 or (self._grows and self._wanted > self._size)

    def free(self, group: Speaks) -> None:
        wanted, self._used, self._wanted = self._wanted, 0, 0
        if wanted > self._size and self._grows:
            if self._file is not None:
                os.close(self._file.number)
            self._file, self._size = None, 0
            self._file = _File.among(group, mmap.PAGESIZE + self._ranks * wanted)
            self._grows = self._file is not None
            self._size = wanted if self._grows else 0
