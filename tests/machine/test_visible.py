"""Which GPUs a process may use, as CUDA reads CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from typing import Any

import pytest

from overdrive.machine import gpu
from overdrive.machine.visible import visible
from tests.machine.recorded_nvml import recorded

GPUS = ["GPU-aa11", "GPU-aa22", "GPU-bb33"]
NONE: list[list[str]] = [[], [], []]
PARTS = [["MIG-1", "MIG-2"], [], ["MIG-3"]]


@pytest.mark.parametrize(
    ("value", "parts", "found"),
    [
        (None, NONE, [(0, None), (1, None), (2, None)]),
        ("", NONE, []),
        ("-1", NONE, []),
        ("2,0", NONE, [(2, None), (0, None)]),
        ("1,7,0", NONE, [(1, None)]),  # what follows an entry that names nothing is not visible
        ("GPU-bb", NONE, [(2, None)]),
        ("GPU-aa", NONE, []),  # of two
        ("GPU-aa22, 0", NONE, [(1, None), (0, None)]),
        ("MIG-2", PARTS, [(0, 1)]),
        ("MIG-2,MIG-3", PARTS, [(0, 1)]),  # a process sees one part
        ("0", PARTS, [(0, 0)]),
        ("1", PARTS, [(1, None)]),
    ],
)
def test_what_cuda_shows(value: str | None, parts: Any, found: Any) -> None:
    assert visible(value, GPUS, parts) == found


def test_a_plan_names_the_gpus_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(told: dict[str, Any]) -> None:
        for number, device in enumerate(told["devices"]):
            device["nvmlDeviceGetUUID"] = f"GPU-{number}"
        told["devices"][1].update(
            nvmlDeviceGetMemoryInfo={"total": 80 << 30, "used": 60 << 30},
            nvmlDeviceGetMigMode=[1, 1],
            nvmlDeviceGetMaxMigDeviceCount=1,
            nvmlDeviceGetMigDeviceHandleByIndex={
                "0": {
                    "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                    "nvmlDeviceGetUUID": "MIG-7",
                    "nvmlDeviceGetMemoryInfo": {"total": 10 << 30, "used": 1 << 30},
                }
            },
        )

    def seen(value: str) -> list[tuple[str, int]]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        told = recorded("h100x8", cut)
        assert "MIG-7" not in str(told) and "GPU-0" not in str(told)  # what is found gets published
        monkeypatch.setattr(gpu, "_reported", lambda: told)
        gpu.gpus.cache_clear()
        try:
            return [(each["name"], each["memory_bytes"] >> 30) for each in gpu.gpus()]
        finally:
            gpu.gpus.cache_clear()

    assert seen("MIG-7") and gpu.memory_in_use() == 1 << 30, "of the part, not what others have of the card"
    whole = seen("0")
    assert len(whole) == 1 and "MIG" not in whole[0][0]
    assert seen("MIG-7") == [("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10)]
    assert len(seen("GPU-3,2")) == 2 and seen("9") == []
