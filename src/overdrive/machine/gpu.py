"""NVIDIA's GPUs in short, for what is written into plans: no serial numbers or UUIDs. AMD's are in `machine.amd`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from overdrive.machine.nvml import nvml

_DEVICES = ("/dev/nvidiactl", "/dev/dxg")  # Linux, and Linux within Windows
_LASTING = ("name", "memory_bytes", "compute_capability", "power_limit_watts", "most_sm_mhz")


@cache
def gpus() -> tuple[dict[str, Any], ...]:
    """The GPUs that a process may use, and of one in parts, by MIG, its part; () where there are none, or where the
    driver does not answer."""
    found = []
    reported = _reported()
    for gpu in _usable(reported):
        if "name" in gpu:  # one that fell off the bus has none
            found.append({name: gpu[name] for name in _LASTING if name in gpu})
            found[-1] |= {"driver": reported["driver"]} if "driver" in reported else {}
    return tuple(found)


def _usable(reported: dict[str, Any]) -> Iterator[dict[str, Any]]:
    listed = reported.get("gpus", [])
    for number, part in reported.get("visible", [(number, None) for number in range(len(listed))]):
        gpu = listed[number]
        if part is None:
            yield gpu
        else:  # what is taken of the card is in the parts of others, too
            yield {**gpu, "memory_used_bytes": 0, **gpu["slices"][part]}


def memory_in_use() -> int:
    """Bytes that are taken now on the fullest of the usable GPUs, by anybody; 0 where there is none."""
    return max((gpu.get("memory_used_bytes", 0) for gpu in _usable(_reported())), default=0)


def _reported() -> dict[str, Any]:
    """NVML's report; {} at once where the driver has no device, as on machines without a GPU."""
    return nvml() if any(map(os.path.exists, _DEVICES)) else {}
