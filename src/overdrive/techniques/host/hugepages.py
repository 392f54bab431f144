"""Technique `hugepages`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from overdrive.core.contract import Contract
from overdrive.core.facts import Facts
from overdrive.techniques.technique import Knob, Settings, Technique

_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TUNABLE = "glibc.malloc.hugetlb"
_LEAST_GLIBC = (2, 35)


class Hugepages(Technique):
    """Has large blocks of memory backed by pages of 2 MiB instead of 4 KiB.

    What it does: before the process starts, tells glibc's `malloc` (2.35 or later), or PyTorch's own allocation
    of CPU tensors, to ask the kernel for transparent huge pages (`madvise`).

    When it helps: CPU training with large tensors, where page faults and misses of the address cache take time;
    most where freed memory goes back to the system at every step. A small CNN at batch 1,024 gained 1.5 times
    (1.3 to 1.8, on two busy cores of a virtual machine), and 1.03 times (1.01 to 1.06) beside `allocator`.

    When it hurts: memory in use grows, since a page is taken as a whole. A kernel short of whole huge pages
    stops a program while it moves memory together. Nothing is gained where the kernel gives huge pages always.

    What it watches: nothing. It is said before the process starts, and no result depends on it. What would escape: code
    that depends on the addresses of its memory, or reads memory that nobody has written to.

    Contract: exact. Only the size of pages changes.

    Source: https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html;
    https://docs.kernel.org/admin-guide/mm/transhuge.html
    """

    name = "hugepages"
    frameworks = ("torch", "keras")
    programs = ("training", "inference")
    contract = Contract.EXACT
    targets = ("forward", "backward", "optimizer")
    expected_saving = 0.04
    survives = True
    order = 6
    knobs = (Knob("through", "glibc", "who asks for huge pages", choices=("glibc", "torch")),)

    def applies(self, facts: Facts) -> str | None:
        if facts.device != "cpu":
            return "the tensors live on the GPU, whose pages are its driver's"
        return _kernel_says()

    def candidates(self, facts: Facts) -> Sequence[Settings]:
        glibc = ("glibc",) if _has_tunable() and not _chosen_by_user() else ()
        torch = ("torch",) if facts.framework == "torch" else ()
        return [{"through": way} for way in (*glibc, *torch)]

    def environment(self, settings: Settings) -> dict[str, str]:
        if settings["through"] == "torch":
            return {"THP_MEM_ALLOC_ENABLE": "1"}
        if not _has_tunable():
            return {}
        present = os.environ.get("GLIBC_TUNABLES", "")
        if _chosen_by_user():
            return {"GLIBC_TUNABLES": present}  # as it is, also when this is asked inside the process
        return {"GLIBC_TUNABLES": ":".join(filter(None, (present, f"{_TUNABLE}=1")))}


def _kernel_says() -> str | None:
    """Why transparent huge pages cannot be asked for, if so."""
    try:
        modes = _MODE.read_text()
    except OSError:
        return "this kernel has no transparent huge pages"
    if "[never]" in modes:
        return "transparent huge pages are switched off on this machine"
    if "[always]" in modes:
        return "the kernel gives huge pages to everyone already"
    return None


def _has_tunable() -> bool:
    name, version = platform.libc_ver()
    if name != "glibc":
        return False
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= _LEAST_GLIBC


def _chosen_by_user() -> bool:
    return _TUNABLE in os.environ.get("GLIBC_TUNABLES", "")
