"""What this machine is, and whether it is the one that evidence was found on. Names no host and no user."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

from overdrive.core.tune_result import MachineSummary
from overdrive.machine import reading
from overdrive.machine.amd import amd
from overdrive.machine.cpu import cpu, granted_cores
from overdrive.machine.gpu import gpus
from overdrive.machine.memory import available_memory, total_memory
from overdrive.machine.software import versions

__all__ = ["available_memory", "fingerprint", "granted_cores", "machine", "summary", "versions"]

_GIB = 2**30
_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")  # that a program's speed depends on
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def machine(root: Path = reading.ROOT) -> dict[str, Any]:
    """Processor, memory in bytes, GPUs and operating system; what cannot be found out is left out."""
    return {
        "cpu": cpu(root),
        "memory_bytes": total_memory(root),
        "available_bytes": available_memory(root),
        "gpus": [*(dict(gpu) for gpu in gpus()), *_amd_gpus(root)],
        "os": operating_system(),
    }


def summary() -> MachineSummary:
    """The machine in the few words that a report needs."""
    found = machine()
    return MachineSummary(
        cpu=found["cpu"].get("model", "unknown"),
        cores=found["cpu"].get("granted_cores"),
        memory_bytes=found["memory_bytes"],
        gpus=tuple(gpu.get("name", "GPU") for gpu in found["gpus"]),
        os=found["os"],
    )


def _amd_gpus(root: Path) -> list[dict[str, Any]]:
    """AMD's GPUs, by what does not change by itself."""
    lasting = ("name", "architecture", "memory_bytes", "power_limit_watts", "compute_partition", "memory_partition")
    return [
        {name: gpu[name] for name in lasting if name in gpu}
        for gpu in (amd(root) or {}).get("gpus", [])
        if gpu.get("architecture")  # a screen's, which KFD does not know, computes nothing
    ]


def fingerprint(root: Path = reading.ROOT) -> str:
    """A hash of all that a speed depends on: two equal ones may share their evidence.

    Not of what changes by itself or does not matter: free memory, the kernel's patches, the last gibibyte.
    """
    found = machine(root)
    del found["available_bytes"], found["os"]
    found["memory_gib"] = round(found.pop("memory_bytes") / _GIB)
    # Where the cards that it leaves are known, which numbers they have does not count: a job that is queued again may
    # get others of the same kind.
    variables = _VARIABLES if gpus() else (_VISIBLE, *_VARIABLES)
    found["variables"] = {name: os.environ.get(name) for name in variables}
    found["versions"] = versions()
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def operating_system() -> str:
    """The operating system, such as "Debian GNU/Linux 12 (bookworm), Linux 6.1.0"."""
    kernel = f"{platform.system()} {platform.release()}".strip()
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError):  # not on macOS
        return kernel
