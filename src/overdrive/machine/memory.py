"""The main memory, in bytes: what there is and what this process may still take."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

import psutil

from overdrive.machine import cgroup, reading


def total_memory(root: Path = reading.ROOT) -> int:
    """The machine's memory, or the container's where that is less; 0 where it cannot be found out."""
    return _least(_of_machine("total", "SC_PHYS_PAGES"), cgroup.memory(root))


def available_memory(root: Path = reading.ROOT) -> int:
    """What can be taken without swapping and without being killed; 0 where it cannot be found out."""
    return _least(_of_machine("available", "SC_AVPHYS_PAGES"), cgroup.memory_left(root))


def peak_resident() -> int:
    """The most that this process itself has held in memory so far; its workers' is theirs. 0: not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def malloc_refusal() -> str | None:
    """Why no process can be started here with another malloc, or other settings of glibc's; None where one can."""
    if platform.libc_ver()[0] != "glibc":
        return "this system's malloc is not glibc's"
    return "LD_PRELOAD is set already" if "LD_PRELOAD" in os.environ else None


def _least(machine: int | None, limit: int | None) -> int:
    return min((each for each in (machine, limit) if each is not None), default=0)


def _of_machine(field: str, pages: str) -> int | None:
    try:
        return int(getattr(psutil.virtual_memory(), field))
    except (OSError, RuntimeError, psutil.Error):  # without /proc
        pass
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
