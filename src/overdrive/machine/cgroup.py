"""The limits of Linux control groups, v1 and v2: what a container or a batch system grants of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overdrive.machine.reading import ROOT, first_number, number, text

# v1 says "no limit" with the largest multiple of a page below 2**63; no machine has an exbibyte.
_NO_LIMIT = 2**60


def cores(root: Path = ROOT) -> float | None:
    """The CPU time that may be used, in cores; None where there is no limit."""
    limits = []
    for group in _groups("cpu", root):
        words = text(group / "cpu.max").split()  # v2: "QUOTA PERIOD" or "max PERIOD"
        quota, period = first_number(words[0] if words else ""), first_number(words[-1] if words else "")
        if not words:
            quota, period = number(group / "cpu.cfs_quota_us"), number(group / "cpu.cfs_period_us")
        if quota and period and quota > 0:  # v1 says -1 for no limit
            limits.append(quota / period)
    return min(limits, default=None)


def throttled(root: Path = ROOT) -> float | None:
    """Seconds for which this process's group had used up its CPU time, since it began; None where nobody tells."""
    for group in _groups("cpu", root):
        told = _statistics(group / "cpu.stat")
        for name, units in (("throttled_usec", 1e6), ("throttled_time", 1e9)):  # v2, v1
            if (count := first_number(told.get(name, ""))) is not None:
                return count / units
    return None


def memory(root: Path = ROOT) -> int | None:
    """The memory that may be used, in bytes; None where there is no limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path = ROOT) -> int | None:
    """The memory that may still be used, in bytes; None where there is no limit."""
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every group that has a limit; each one above limits those below."""
    for group in _groups("memory", root):
        limit = number(group / "memory.max") or number(group / "memory.limit_in_bytes")
        if limit is None or not 0 < limit < _NO_LIMIT:
            continue
        used = number(group / "memory.current") or number(group / "memory.usage_in_bytes") or 0
        # What the kernel keeps of files that were read is given up as soon as memory is needed.
        statistics = _statistics(group / "memory.stat")
        cached = sum(
            first_number(statistics.get(f"total_{name}") or statistics.get(name) or "0") or 0
            for name in ("inactive_file", "active_file")  # active: read twice, by the second epoch
        )
        yield limit, max(0, used - cached)


def _statistics(path: Path) -> dict[str, str]:
    """The lines "name value" of a file."""
    return dict(line.split()[:2] for line in text(path).splitlines() if len(line.split()) > 1)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's group and of those above it.

    In a container the path is often the host's and not to be seen; the group's files are then at the top.
    """
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            tops = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in controllers.split(","):
            tops = [f"sys/fs/cgroup/{controllers}", f"sys/fs/cgroup/{controller}"]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for top in dict.fromkeys(tops):
            for depth in range(len(parts), -1, -1):
                folder = root.joinpath(top, *parts[:depth])
                if folder.is_dir():
                    yield folder
