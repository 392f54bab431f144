"""Surveys the main memory for doctor: pages, swap, shared memory, and the limits set on this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from overdrive.machine import cgroup
from overdrive.machine.memory import available_memory, total_memory
from overdrive.machine.reading import ROOT, first_number, known, table, text
from overdrive.machine.shared_memory import PLACE
from overdrive.machine.storage import mounts, size_option

_LIMITS = {"locked_bytes": ("Max locked memory", "RLIMIT_MEMLOCK"), "open_files": ("Max open files", "RLIMIT_NOFILE")}
UNLIMITED = "unlimited"


def pages(root: Path = ROOT) -> dict[str, Any]:
    """All in bytes; `granted_bytes` is what the container leaves of the machine's memory."""
    values = {name: first_number(value) or 0 for name, value in table(root / "proc/meminfo") if value[:1].isdigit()}
    size = {name: values[name] * 1024 for name in values}
    limit = cgroup.memory(root)
    total = size.get("MemTotal") or (total_memory(root) if root == ROOT else None)
    available = size.get("MemAvailable")
    left = cgroup.memory_left(root)
    if available is None:
        available = available_memory(root) if root == ROOT else None
    elif left is not None:
        available = min(available, left)
    found: dict[str, object] = {
        "memory_bytes": total,
        "granted_bytes": min(limit, total) if limit and total else total,
        "limit_bytes": limit,
        "available_bytes": available,
        "swap_bytes": size.get("SwapTotal"),
        "swap_used_bytes": size["SwapTotal"] - size.get("SwapFree", 0) if "SwapTotal" in size else None,
        "transparent_hugepages": _chosen(text(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        "reserved_hugepages": values.get("HugePages_Total"),
        "free_hugepages": values.get("HugePages_Free"),
        "hugepage_bytes": size.get("Hugepagesize"),
    }
    return dict(known(found | _shared(root) | {name: _limit(name, root) for name in _LIMITS}))


def _chosen(words: str) -> str | None:
    """The word in brackets of "always [madvise] never"."""
    return words.partition("[")[2].partition("]")[0] or None


def _shared(root: Path) -> dict[str, object]:
    """Size and free space of /dev/shm, through which data workers hand over their batches."""
    found: dict[str, object] = {}
    for mount in mounts(root):
        if mount["place"] == PLACE:
            found["shared_memory_bytes"] = size_option(mount["options"])
    if root == ROOT:
        with contextlib.suppress(OSError):
            stat = os.statvfs(PLACE)
            found["shared_memory_bytes"] = stat.f_blocks * stat.f_frsize
            found["shared_memory_free_bytes"] = stat.f_bavail * stat.f_frsize
    return found


def _limit(name: str, root: Path) -> int | str | None:
    """The soft limit of this process; "unlimited", a number, or None where the system does not report it."""
    title, constant = _LIMITS[name]
    for line in text(root / "proc/self/limits").splitlines():
        if line.startswith(title):
            words = line[len(title) :].split()
            return UNLIMITED if words[:1] == [UNLIMITED] else int(words[0]) if words and words[0].isdigit() else None
    if root != ROOT:
        return None
    try:
        import resource

        soft = resource.getrlimit(getattr(resource, constant))[0]
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    return UNLIMITED if soft == resource.RLIM_INFINITY else int(soft)
