"""Stands for the module pynvml: answers from `fixtures/NAME/nvml.json`, which are synthesised like the rest of them.

A function's value is its answer; where it stands by arguments ("0", "1 0"), that of those. What is not there is not
supported. Records in the answers have attributes, as pynvml's structures do.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from overdrive.machine.nvml import read

FIXTURES = Path(__file__).parent / "fixtures"
_BY_ARGUMENTS = {
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetApplicationsClock",
    "nvmlDeviceGetDefaultApplicationsClock",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlSystemGetProcessName",
}
Change = Callable[[dict[str, Any]], Any]


class Fabric(ctypes.Structure):
    _fields_ = (("state", ctypes.c_uint),)


class Library:
    """The constants are those of nvidia-ml-py; `test_nvml.py` compares them where that is installed."""

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0
    NVML_NVLINK_MAX_LINKS = 36
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 90, 230
    nvmlMemory_v2 = 0x02000028
    c_nvmlGpuFabricInfoV_t = Fabric

    class NVMLError(Exception):
        pass

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def nvmlDeviceGetCount(self) -> int:
        return len(self.told["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        device = self.told["devices"][index]
        if "lost" in device:
            raise self.NVMLError(device["lost"])
        return {**self.told["device"], **device}

    def nvmlDeviceGetPciInfo(self, handle: dict[str, Any]) -> Any:
        return SimpleNamespace(busId=handle["bus"])

    def nvmlDeviceGetFieldValues(self, handle: dict[str, Any], fields: list[int]) -> Any:
        known = handle.get("nvmlDeviceGetFieldValues", {})
        return [
            SimpleNamespace(
                nvmlReturn=0 if str(field) in known else 3,
                valueType=1,
                value=SimpleNamespace(uiVal=known.get(str(field), 0)),
            )
            for field in fields
        ]

    def nvmlDeviceGetGpuFabricInfoV(self, handle: dict[str, Any], place: Any) -> int:
        if "nvmlDeviceGetGpuFabricInfoV" not in handle:
            raise self.NVMLError("Not Supported")
        place.contents.state = handle["nvmlDeviceGetGpuFabricInfoV"]["state"]
        return 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*given: Any) -> Any:
            about, arguments = (self.told["system"], given) if name.startswith("nvmlSystem") else (given[0], given[1:])
            answer = about.get(name)
            if name in _BY_ARGUMENTS and answer is not None:
                answer = answer.get(" ".join(map(str, arguments)))
            if answer is None:
                raise self.NVMLError("Not Supported")
            return answer if name == "nvmlDeviceGetMigDeviceHandleByIndex" else _record(answer)

        return function


def _record(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_record(each) for each in answer]
    return SimpleNamespace(**answer) if isinstance(answer, dict) else answer


def library(name: str, change: Change = lambda told: None) -> Library:
    """The module pynvml of that machine; `change` alters its answers. Without a GPU there, it finds none."""
    file = FIXTURES / name / "nvml.json"
    told = json.loads(file.read_text()) if file.is_file() else {"system": {}, "device": {}, "devices": []}
    change(told)
    return Library(told)


def recorded(name: str, change: Change = lambda told: None) -> dict[str, Any]:
    """What NVML tells on that machine, as it comes from the child process."""
    if not (FIXTURES / name / "nvml.json").is_file():
        return {"why": "NVML: NVML Shared Library Not Found"}
    found: dict[str, Any] = json.loads(json.dumps(read(library(name, change))))
    return found


def package(folder: Path, init: str, name: str = "h100x8") -> str:
    """A PYTHONPATH with a package pynvml that answers as on that machine, once `init` has run."""
    (folder / "pynvml.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parents[2])!r})\n"
        "from tests.machine.recorded_nvml import Library, library\n"
        f"NVMLError = Library.NVMLError\ndef nvmlInit():\n    {init}\n"
        f"def __getattr__(name):\n    return getattr(library({name!r}), name)\n"
    )
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
