"""Findings about the main memory: shared memory, pages, swap, and limits on this process."""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding

_MIB, _GIB = 2**20, 2**30
_SHARED = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker"


def shared_memory(survey: Survey) -> Iterator[Finding]:
    size = survey["memory"].get("shared_memory_bytes")
    if size is None or size >= _GIB:
        return
    small = size <= 64 * _MIB  # what Docker and Kubernetes give when nobody asks
    yield finding(
        "shared_memory",
        (Severity.WRONG if small else Severity.ADVICE, Basis.CITED, Sure.CERTAIN),
        f"/dev/shm has {size / _MIB:,.0f} MiB: data workers and NCCL hand over their data there.",
        "A full one ends a data worker with a bus error, and NCCL fails to start.",
        "Give the container more; in Kubernetes mount an emptyDir with medium: Memory on /dev/shm.",
        "docker run --shm-size=8g ...",
        _SHARED,
    )


def locked(survey: Survey) -> Iterator[Finding]:
    limit = survey["memory"].get("locked_bytes")
    ports = [port for port in survey["network"].get("ports", []) if port["state"] == "ACTIVE"]
    if isinstance(limit, int) and limit < _GIB and ports:
        yield finding(
            "locked_memory",
            (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
            f"`ulimit -l` lets this process lock {limit // 1024:,} KiB, and there are InfiniBand or RoCE ports.",
            "Memory must be locked before a card may read it: NCCL and MPI fail, or fall back to TCP.",
            "Lift the limit (in Docker: --ulimit memlock=-1; in Slurm: LimitMEMLOCK=infinity for slurmd).",
            "ulimit -l unlimited",
            _SHARED,
        )


def open_files(survey: Survey) -> Iterator[Finding]:
    limit = survey["memory"].get("open_files")
    if isinstance(limit, int) and limit < 4096:
        yield finding(
            "open_files",
            (Severity.ADVICE, Basis.CITED, Sure.POSSIBLE),
            f"This process may open {limit} files at a time.",
            "Each tensor that a data worker hands over takes one: large batches end with “Too many open files”.",
            "Raise the limit.",
            "ulimit -n 65536",
            "https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor",
        )


def hugepages(survey: Survey) -> Iterator[Finding]:
    memory = survey["memory"]
    if memory.get("transparent_hugepages") == "never":
        yield finding(
            "transparent_hugepages",
            (Severity.ADVICE, Basis.CITED, Sure.POSSIBLE),
            "Transparent huge pages are switched off.",
            "`hugepages` gained 1.05× on examples/cifar_cnn.py (docs/measured.md); it cannot be tried here.",
            "Allow them to programs that ask.",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "https://docs.kernel.org/admin-guide/mm/transhuge.html",
        )
    total, free = memory.get("reserved_hugepages") or 0, memory.get("free_hugepages") or 0
    held = free * memory.get("hugepage_bytes", 0)
    if total and held > 0.05 * memory.get("memory_bytes", 0):
        yield finding(
            "reserved_hugepages",
            (Severity.ADVICE, Basis.COMPUTED, Sure.LIKELY),
            f"{held / _GIB:.1f} GiB are reserved as huge pages, and nobody uses them.",
            "PyTorch and TensorFlow do not take from these: the memory is lost to training and to the file cache.",
            "Give them back, unless a data base or a virtual machine is to use them.",
            "sudo sysctl vm.nr_hugepages=0",
            "https://docs.kernel.org/admin-guide/mm/hugetlbpage.html",
        )


def little_left(survey: Survey) -> Iterator[Finding]:
    memory = survey["memory"]
    granted, available = memory.get("granted_bytes"), memory.get("available_bytes")
    if granted and available is not None and available < 0.1 * granted:
        yield finding(
            "memory_taken",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.CERTAIN),
            f"Only {available / _GIB:.1f} of {granted / _GIB:.1f} GiB of memory are free.",
            "Data files no longer stay in the kernel's cache, and `sample_cache` has no room.",
            "See who holds it.",
            "ps aux --sort=-rss | head",
        )
    used = memory.get("swap_used_bytes") or 0
    if used > _GIB:
        yield finding(
            "swap",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.POSSIBLE),
            f"{used / _GIB:.1f} GiB of memory have been moved to disk (swap).",
            "What is touched again comes back at the disk's speed.",
            "Stop what takes the memory; then bring the pages back.",
            "sudo swapoff -a && sudo swapon -a",
        )


def limit(survey: Survey) -> Iterator[Finding]:
    memory = survey["memory"]
    total, granted = memory.get("memory_bytes"), memory.get("granted_bytes")
    if total and granted and granted < 0.95 * total:
        yield finding(
            "memory_limit",
            (Severity.NOTE, Basis.COMPUTED, Sure.CERTAIN),
            f"This process may use {granted / _GIB:.1f} of the machine's {total / _GIB:.1f} GiB of memory.",
            "Beyond that it is killed; pages of files that it reads count as well, but are given up first.",
            "Ask the scheduler for more where data would fit the rest.",
        )


RULES = (shared_memory, locked, open_files, hugepages, little_left, limit)
