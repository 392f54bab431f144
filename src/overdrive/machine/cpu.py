"""The processor: what it is, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from overdrive.machine import cgroup, reading
from overdrive.machine.numa import allowed_cores, one_a_core

# Instructions that decide which number formats and kernels are fast; /proc/cpuinfo's names, x86 and Arm.
_FEATURES = (
    *(
        "avx2",
        "fma",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
    ),
    *("asimd", "asimddp", "sve", "sve2", "bf16", "i8mm"),
)

# What a compiler for this processor (`-march=native`) may use, by the same names; of others no code is made.
_COMPILED_TO = frozenset(
    (
        *_FEATURES,
        *("pni", "ssse3", "sse4_1", "sse4_2", "sse4a", "avx", "f16c", "fma4", "xop", "tbm"),
        *("abm", "bmi1", "bmi2", "popcnt", "movbe", "adx", "aes", "pclmulqdq", "sha_ni", "gfni", "vaes", "vpclmulqdq"),
        *("avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_bitalg"),
        *("avx512_vpopcntdq", "avx512_vp2intersect", "avx_vnni", "avx_vnni_int8", "avx_vnni_int16", "avx_ifma"),
        *("avx_ne_convert", "avx10_1", "avx10_2", "amx_fp16", "amx_complex"),
        *("atomics", "asimdrdm", "asimdhp", "asimdfhm", "fphp", "jscvt", "fcma", "lrcpc", "ilrcpc", "sha3", "sha512"),
        *("svebf16", "svei8mm", "svebitperm", "sveaes", "sme", "sme2"),
    )
)


def cpu(root: Path = reading.ROOT) -> dict[str, Any]:
    """Model, cores and instructions; what cannot be found out is left out."""
    found = {
        "model": _model(root),
        "architecture": platform.machine(),
        "physical_cores": _count(logical=False),
        "logical_cores": _count(logical=True),
        "granted_cores": granted_cores(root),
        "features": [feature for feature in _FEATURES if feature in _entry("flags", "Features", root=root).split()],
    }
    return {name: value for name, value in found.items() if value}


def instructions(root: Path = reading.ROOT) -> list[str]:
    """Those that code may have that is compiled for this processor alone."""
    return sorted(_COMPILED_TO.intersection(_entry("flags", "Features", root=root).split()))


def granted_cores(root: Path = reading.ROOT) -> int:
    """The cores that this process may use, by its affinity and by its container's or job's quota.

    A part of a core counts for nothing, unless there is no more: a thread too many waits for its share.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS
        allowed = _count(logical=True) or 1
    quota = cgroup.cores(root)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def computing_cores(root: Path = reading.ROOT) -> int:
    """As many of the granted cores as compute beside each other at full speed: two hardware threads of a core share its
    arithmetic. PyTorch built with MKL takes as many threads by itself."""
    granted = granted_cores(root)
    return min(granted, len(one_a_core(allowed_cores(), root)) or granted)


def fewer_cores() -> int:
    """The granted cores, where they are fewer than the machine has; else 0."""
    granted = granted_cores()
    return granted if granted < (_count(logical=True) or 1) else 0


def busy_share(seconds: float = 0.5) -> float:
    """The share of the cores that this process may use, which other programs use now; takes `seconds`."""
    shares = psutil.cpu_percent(interval=seconds, percpu=True)
    try:
        own = [shares[core] for core in os.sched_getaffinity(0)]
    except (AttributeError, OSError, IndexError):  # not on macOS; or cores that are switched off are not listed
        own = shares
    return float(sum(own)) / max(1, len(own)) / 100


def _model(root: Path) -> str:
    if name := _entry("model name", "Model", "cpu model", root=root):
        return name
    maker, part = _entry("CPU implementer", root=root), _entry("CPU part", root=root)  # all that servers of Arm's tell
    return f"Arm {maker}/{part}" if maker and part else platform.processor()


def _entry(*names: str, root: Path) -> str:
    """The first of these entries in /proc/cpuinfo."""
    lines = reading.text(root / "proc/cpuinfo").splitlines()
    entries = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return next((entries[name] for name in names if name in entries), "")


def _count(logical: bool) -> int | None:
    try:
        return psutil.cpu_count(logical=logical) or (os.cpu_count() if logical else None)
    except (OSError, RuntimeError, psutil.Error):  # without /proc
        return os.cpu_count() if logical else None
