"""NVIDIA's GPUs in short, as its own command tells, or its library where there is no command; no framework is started.

AMD's are in `machine.amd`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from functools import cache
from typing import Any

from overdrive.machine.command import ask
from overdrive.machine.nvml import nvml

_MIB = 2**20
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # Linux, and Linux within Windows
# Our name, the command's name, and what to make of its text. No serial numbers or UUIDs: plans get published.
_FIELDS: dict[str, tuple[str, Any]] = {
    "name": ("name", str),
    "memory_bytes": ("memory.total", lambda text: int(float(text) * _MIB)),
    "driver": ("driver_version", str),
    "compute_capability": ("compute_cap", str),
    "power_limit_watts": ("power.limit", float),
    "most_sm_mhz": ("clocks.max.sm", lambda text: int(float(text))),
}


@cache
def gpus() -> tuple[dict[str, Any], ...]:
    """All GPUs of the machine; () where there are none, or where the driver does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return tuple(_by_nvml())
    for names in (list(_FIELDS), ["name", "memory_bytes", "driver"]):  # older drivers know fewer fields
        answer = _ask(command, [_FIELDS[name][0] for name in names])
        if answer is not None:
            return tuple(_gpu(line, names) for line in answer.splitlines() if line.count(",") == len(names) - 1)
    return ()


def memory_in_use() -> int:
    """Bytes that are taken now on the fullest of the GPUs, by anybody; 0 where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return max((gpu.get("memory_used_bytes", 0) for gpu in _all_of_nvml()), default=0)
    answer = _ask(command, ["memory.used"])
    taken = [0]
    for line in (answer or "").splitlines():
        with contextlib.suppress(ValueError):  # "[N/A]"
            taken.append(int(float(line) * _MIB))
    return max(taken)


def _by_nvml() -> list[dict[str, Any]]:
    """The same facts in the same units, so that evidence is the same machine's either way."""
    found = []
    for gpu in _all_of_nvml():
        told = {name: gpu[name] for name in _FIELDS if name in gpu}
        if "memory_bytes" in told:
            told["memory_bytes"] = told["memory_bytes"] // _MIB * _MIB
        if "power_limit_watts" in told:
            told["power_limit_watts"] = float(told["power_limit_watts"])
        found.append(told)
    return found


def _all_of_nvml() -> list[dict[str, Any]]:
    """[] at once where the driver has no device, as on machines without a GPU."""
    if not any(map(os.path.exists, _DEVICES)):
        return []
    told = nvml() or {}
    return [{**gpu, "driver": told.get("driver")} for gpu in told.get("gpus", []) if "name" in gpu]


def _ask(command: str, fields: list[str]) -> str | None:
    return ask([command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])


def _gpu(line: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name, text in zip(names, line.split(","), strict=True):
        try:
            found[name] = _FIELDS[name][1](text.strip())
        except ValueError:  # "[N/A]"
            continue
    return found
