"""NVIDIA's GPUs as the driver's own library NVML reports them, by NVIDIA's package nvidia-ml-py.

It is asked in a child process: a broken driver may never answer, and a call into it cannot be ended. What a driver or
a version of the package does not know is left out, like everything else that cannot be found out. So are serial numbers
and UUIDs, since what doctor finds gets published; of processes the name is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from overdrive.machine.command import start_of
from overdrive.machine.loaded import MARK, answer_of
from overdrive.machine.reading import known
from overdrive.machine.visible import visible

_WAIT_SECONDS = 20.0  # a driver that wakes eight GPUs takes up to ten
_START = start_of("overdrive.machine.nvml")
_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_FABRIC = {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}
_RECOVERY = {1: "Reset", 2: "Reboot", 3: "Drain of its peers", 4: "Drain and reset"}
_FAULTS = {
    "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "sw_thermal_slowdown": 0x20,
}
# As nvidia-smi's matrix calls the way between two GPUs. Two on one board (0) have one bridge between them.
_WAYS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_TO_GPU, _TO_SWITCH = 0, 2
_UNSIGNED = 1  # a field value's type


def nvml(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`driver`, `cuda` (the newest that it runs), `gpus` and `topology`; only `why` where NVML does not answer."""
    answer = answer_of(_START, environment, _WAIT_SECONDS)
    return answer or {"why": f"NVML failed, or gave no answer within {_WAIT_SECONDS:.0f} s"}


def main() -> None:
    print(MARK + json.dumps(_answer()), flush=True)


def _answer() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError as error:
        return {"why": f"the package nvidia-ml-py is missing ({error})"}
    try:
        pynvml.nvmlInit()
        return read(pynvml)  # the end of the process shuts it down
    except pynvml.NVMLError as error:
        return {"why": f"NVML: {error}"}


def read(library: Any) -> dict[str, Any]:
    """All that `library`, the module pynvml, tells once it is initialised."""
    gpus, handles, uuids = [], [], []
    for index in range(library.nvmlDeviceGetCount()):
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
        except library.NVMLError as error:
            gpus.append({"index": index, "unreachable": str(error), "pcie": {}})
            uuids.append("")
            continue
        handles.append(handle)
        gpus.append(_gpu(_Asked(library, handle), index))
        uuids.append(_text(_Asked(library, handle)("nvmlDeviceGetUUID")) or "")
    system = _Asked(library)
    cuda = system("nvmlSystemGetCudaDriverVersion")
    found = {
        "driver": _text(system("nvmlSystemGetDriverVersion")),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        "gpus": gpus,
        "visible": visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids, [_part_uuids(each) for each in gpus]),
        # Rows stand for all GPUs or for none.
        "topology": _topology(library, handles) if len(handles) == len(gpus) else None,
    }
    return dict(known(found))


def _part_uuids(gpu: dict[str, Any]) -> list[str]:
    """Taken out: what is found gets published."""
    return [part.pop("uuid", "") for part in gpu.get("slices", [])]


class _Asked:
    """Calls functions of the library by name, on a GPU or on none; None where they cannot be answered."""

    def __init__(self, library: Any, *handle: Any) -> None:
        self.library = library
        self._handle = handle

    def __call__(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.library, name, None)
        if function is None:  # of a later version of the package
            return None
        try:
            return function(*self._handle, *arguments)
        except (self.library.NVMLError, TypeError, AttributeError):  # not supported, not permitted, not in this driver
            return None


def _gpu(ask: _Asked, index: int) -> dict[str, Any]:
    n = ask.library
    memory, use = _memory(ask), ask("nvmlDeviceGetUtilizationRates")
    capability, remapped = ask("nvmlDeviceGetCudaComputeCapability"), ask("nvmlDeviceGetRemappedRows")
    ecc, mig = ask("nvmlDeviceGetEccMode"), ask("nvmlDeviceGetMigMode")
    power = ask("nvmlDeviceGetPowerManagementLimitConstraints")
    bus = ask("nvmlDeviceGetPciInfo")
    found = {
        "index": index,
        "name": _text(ask("nvmlDeviceGetName")),
        "bus": _as_kernel(_text(bus.busId) or "") if bus else None,
        "compute_capability": ".".join(map(str, capability)) if capability else None,
        "memory_bytes": memory.total if memory else None,
        "memory_used_bytes": memory.used if memory else None,
        "sm_mhz": ask("nvmlDeviceGetClockInfo", n.NVML_CLOCK_SM),
        "most_sm_mhz": ask("nvmlDeviceGetMaxClockInfo", n.NVML_CLOCK_SM),
        "application_mhz": ask("nvmlDeviceGetApplicationsClock", n.NVML_CLOCK_GRAPHICS),
        "default_application_mhz": ask("nvmlDeviceGetDefaultApplicationsClock", n.NVML_CLOCK_GRAPHICS),
        "memory_mhz": ask("nvmlDeviceGetClockInfo", n.NVML_CLOCK_MEM),
        "most_memory_mhz": ask("nvmlDeviceGetMaxClockInfo", n.NVML_CLOCK_MEM),
        "power_limit_watts": _watts(ask("nvmlDeviceGetPowerManagementLimit")),
        "default_power_limit_watts": _watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        "most_power_limit_watts": _watts(power[1] if power else None),
        "temperature_celsius": ask("nvmlDeviceGetTemperature", n.NVML_TEMPERATURE_GPU),
        "busy_percent": use.gpu if use else None,
        "persistence": _switch(ask("nvmlDeviceGetPersistenceMode")),
        "compute_mode": _MODES.get(ask("nvmlDeviceGetComputeMode")),
        "ecc": _switch(ecc[0]) if ecc else None,
        "uncorrected_errors": ask(
            "nvmlDeviceGetTotalEccErrors", n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC
        ),
        "row_remap_pending": bool(remapped and remapped[2]) or None,
        "row_remap_failed": bool(remapped and remapped[3]) or None,
        "recovery": _RECOVERY.get(_field(ask, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION") or 0),
        "slowed_by": _slowed(ask),
        "fabric": _fabric(ask),
        "mig": _switch(mig[0]) if mig else None,
        "slices": _slices(ask) if mig and mig[0] else [],
        "processes": [*_processes(ask, "Compute", "C"), *_processes(ask, "Graphics", "G")],
        "pcie": dict(
            known(
                {
                    "generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
                    "system_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
                    "most_generation": ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
                    "lanes": ask("nvmlDeviceGetCurrPcieLinkWidth"),
                    "most_lanes": ask("nvmlDeviceGetMaxPcieLinkWidth"),
                    "replays": ask("nvmlDeviceGetPcieReplayCounter"),
                }
            )
        ),
    }
    return dict(known(found))


def _memory(ask: _Asked) -> Any:
    """Memory by NVML's second version, which counts what the driver keeps (hundreds of MiB) apart from what is used."""
    version = getattr(ask.library, "nvmlMemory_v2", None)
    return ask("nvmlDeviceGetMemoryInfo", version) or ask("nvmlDeviceGetMemoryInfo")


def _slowed(ask: _Asked) -> list[str] | None:
    """The causes that are a fault; the GPU's own power limit under load is none."""
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # drivers before 535 say throttle
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if reasons is None else [fault for fault, bit in _FAULTS.items() if reasons & bit]


def _fabric(ask: _Asked) -> str | None:
    """Whether NVSwitch is set up; "Not Supported" is what a GPU without one says, and is not told."""
    for function, kind in (
        ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
        ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
    ):
        make = getattr(ask.library, kind, None)
        if make is not None:
            info = make()
            if ask(function, ctypes.pointer(info)) is not None:
                return _FABRIC.get(info.state) if info.state else None
    return None


def _slices(ask: _Asked) -> list[dict[str, Any]]:
    """The parts of a GPU that MIG cut, as far as this process may see them."""
    found = []
    for index in range(ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        handle = ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
        if handle is not None:
            part = _Asked(ask.library, handle)
            memory, attributes = _memory(part), part("nvmlDeviceGetAttributes")
            slices = {
                "name": _text(part("nvmlDeviceGetName")),
                "uuid": _text(part("nvmlDeviceGetUUID")),
                "memory_bytes": memory.total if memory else None,
                "memory_used_bytes": memory.used if memory else None,
                "multiprocessors": attributes.multiprocessorCount if attributes else None,
            }
            found.append(dict(known(slices)))
    return found


def _processes(ask: _Asked, kind: str, letter: str) -> list[dict[str, Any]]:
    found = []
    for process in ask(f"nvmlDeviceGet{kind}RunningProcesses") or []:
        command = _text(_Asked(ask.library)("nvmlSystemGetProcessName", process.pid)) or ""
        counts = {
            "pid": process.pid,
            "kind": letter,  # C: computes, G: draws
            "name": os.path.basename(command.split(" ")[0]),
            "memory_bytes": process.usedGpuMemory,
        }
        found.append(dict(known(counts)))
    return found


def _field(ask: _Asked, name: str) -> int | None:
    number = getattr(ask.library, name, None)
    values = ask("nvmlDeviceGetFieldValues", [number]) if number is not None else None
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.uiVal if values[0].valueType == _UNSIGNED else values[0].value.ullVal)


# -- between the GPUs ----------------------------------------------------------------------------


def _topology(library: Any, handles: list[Any]) -> dict[str, Any]:
    """`gpus`: rows of the link between any two, as nvidia-smi's matrix calls it; `nvlinks`: for each GPU the active
    links, their GB/s each way, and how many are inactive."""
    asked = [_Asked(library, handle) for handle in handles]
    infos = [ask("nvmlDeviceGetPciInfo") for ask in asked]
    buses = [_text(info.busId) if info else None for info in infos]
    links = [_links(ask) for ask in asked]
    speeds = [_field(ask, "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON") or 0 for ask in asked]
    rows = []
    for one in range(len(handles)):
        row = []
        for other, handle in enumerate(handles):
            if one == other:
                row.append("X")
            elif count := links[one]["to"].get(buses[other] or "none", 0) + links[one]["to_switch"]:
                row.append(f"NV{count}")
            else:
                row.append(_WAYS.get(asked[one]("nvmlDeviceGetTopologyCommonAncestor", handle), ""))
        rows.append(row)
    states = [
        {
            "active": each["active"],
            "inactive": each["inactive"],
            "gb_per_second": round(each["active"] * speed / 1000, 1),
        }
        for each, speed in zip(links, speeds, strict=True)
    ]
    any_link = any(each["active"] + each["inactive"] for each in states)
    return {"gpus": rows, "nvlinks": states if any_link else []}


def _links(ask: _Asked) -> dict[str, Any]:
    found: dict[str, Any] = {"active": 0, "inactive": 0, "to": {}, "to_switch": 0}
    for link in range(getattr(ask.library, "NVML_NVLINK_MAX_LINKS", 18)):
        state = ask("nvmlDeviceGetNvLinkState", link)
        if state is None:  # it has no more
            break
        found["active" if state else "inactive"] += 1
        if not state:
            continue
        kind = ask("nvmlDeviceGetNvLinkRemoteDeviceType", link)
        if kind == _TO_SWITCH:
            found["to_switch"] += 1
        elif kind == _TO_GPU and (info := ask("nvmlDeviceGetNvLinkRemotePciInfo", link)):
            bus = _text(info.busId)
            found["to"][bus] = found["to"].get(bus, 0) + 1
    return found


def _as_kernel(bus: str) -> str | None:
    """A place on the bus as the kernel writes it: its domain has four digits, the driver's eight."""
    found = re.fullmatch(r"[0-9A-Fa-f]*([0-9A-Fa-f]{4}:.+)", bus)
    return found.group(1).lower() if found else None


def _watts(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else milliwatts // 1000


def _switch(state: int | None) -> bool | None:
    return None if state is None else state == 1


def _text(value: Any) -> str | None:
    """Old versions of the package give bytes."""
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
        return None
    return value if isinstance(value, str) else None
