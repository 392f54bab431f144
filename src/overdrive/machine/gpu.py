"""The graphics processors, as NVIDIA's own command tells: no framework is started for it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from functools import cache
from typing import Any

_MIB = 2**20
_WAIT_SECONDS = 15.0  # a driver that is starting up takes several; a broken one never answers
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


def _ask(command: str, fields: list[str]) -> str | None:
    words = [command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
    try:
        answer, _ = process.communicate(timeout=_WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a broken driver, it cannot be killed
            process.communicate(timeout=1.0)
        return None
    except UnicodeDecodeError:
        return None
    return answer if process.returncode == 0 else None


def _gpu(line: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name, text in zip(names, line.split(","), strict=True):
        try:
            found[name] = _FIELDS[name][1](text.strip())
        except ValueError:  # "[N/A]"
            continue
    return found
