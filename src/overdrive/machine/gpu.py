"""The graphics processors, as NVIDIA's own command tells: no framework is started for it."""

from __future__ import annotations

import contextlib
import shutil
from functools import cache
from typing import Any

from overdrive.machine.command import ask

_MIB = 2**20
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
        return ()
    for names in (list(_FIELDS), ["name", "memory_bytes", "driver"]):  # older drivers know fewer fields
        answer = _ask(command, [_FIELDS[name][0] for name in names])
        if answer is not None:
            return tuple(_gpu(line, names) for line in answer.splitlines() if line.count(",") == len(names) - 1)
    return ()


def memory_in_use() -> int:
    """Bytes that are taken now on the fullest of the GPUs, by anybody; 0 where there is none."""
    command = shutil.which("nvidia-smi")
    answer = _ask(command, ["memory.used"]) if command else None
    taken = [0]
    for line in (answer or "").splitlines():
        with contextlib.suppress(ValueError):  # "[N/A]"
            taken.append(int(float(line) * _MIB))
    return max(taken)


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
