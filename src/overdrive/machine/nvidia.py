"""NVIDIA's GPUs in detail, as `nvidia-smi -q -x` tells: its elements are documented in its own DTD.

It is asked beside NVML itself (`machine.nvml`), for which a package must be installed.

Serial numbers and UUIDs are left out, since what doctor finds gets published. Of processes the name is kept.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from overdrive.machine.command import Ask, ask
from overdrive.machine.reading import known

_MIB = 2**20
Element = ElementTree.Element
# Causes for which a GPU lowers its clocks that are a fault; its own power limit under load is none.
FAULTS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
_UNTOLD = ("", "N/A", "[N/A]", "None", "Unknown Error")


def nvidia(ask: Ask = ask) -> dict[str, Any] | None:
    """Driver, the newest CUDA that it runs, and `gpus`; None where nvidia-smi does not answer."""
    answer = ask(["nvidia-smi", "-q", "-x"])
    if answer is None:
        return None
    try:
        log = ElementTree.fromstring(answer)
    except ElementTree.ParseError:
        return None
    capabilities = (ask(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]) or "").split()
    gpus = [_gpu(each, index) for index, each in enumerate(log.findall("gpu"))]
    for gpu, capability in zip(gpus, capabilities, strict=False):
        if re.fullmatch(r"\d+\.\d+", capability):
            gpu["compute_capability"] = capability
    told = {"driver": _word(log, "driver_version"), "cuda": _word(log, "cuda_version"), "gpus": gpus}
    return dict(known(told))


def _gpu(gpu: Element, index: int) -> dict[str, Any]:
    power = "gpu_power_readings" if gpu.find("gpu_power_readings") is not None else "power_readings"
    limit = "current_power_limit" if gpu.find(f"{power}/current_power_limit") is not None else "power_limit"
    found = {
        "index": index,
        "name": _word(gpu, "product_name"),
        "bus": bus_as_kernel(gpu.get("id", "")),
        "memory_bytes": _mib(gpu, "fb_memory_usage/total"),
        "memory_used_bytes": _mib(gpu, "fb_memory_usage/used"),
        "sm_mhz": _number(gpu, "clocks/sm_clock"),
        "most_sm_mhz": _number(gpu, "max_clocks/sm_clock"),
        "application_mhz": _number(gpu, "applications_clocks/graphics_clock"),
        "default_application_mhz": _number(gpu, "default_applications_clocks/graphics_clock"),
        "memory_mhz": _number(gpu, "clocks/mem_clock"),
        "most_memory_mhz": _number(gpu, "max_clocks/mem_clock"),
        "power_limit_watts": _number(gpu, f"{power}/{limit}"),
        "default_power_limit_watts": _number(gpu, f"{power}/default_power_limit"),
        "most_power_limit_watts": _number(gpu, f"{power}/max_power_limit"),
        "temperature_celsius": _number(gpu, "temperature/gpu_temp"),
        "busy_percent": _number(gpu, "utilization/gpu_util"),
        "persistence": _switch(gpu, "persistence_mode"),
        "compute_mode": _word(gpu, "compute_mode"),
        "ecc": _switch(gpu, "ecc_mode/current_ecc"),
        "uncorrected_errors": _uncorrected(gpu),
        "row_remap_pending": _word(gpu, "remapped_rows/remapped_row_pending") == "Yes" or None,
        "row_remap_failed": _word(gpu, "remapped_rows/remapped_row_failure") == "Yes" or None,
        "recovery": _word(gpu, "gpu_recovery_action"),
        "slowed_by": _slowed(gpu),
        "fabric": _word(gpu, "fabric/state"),
        "mig": _switch(gpu, "mig_mode/current_mig"),
        "slices": [_slice(each) for each in gpu.findall("mig_devices/mig_device")],
        "processes": [_process(each) for each in gpu.findall("processes/process_info")],
        "pcie": dict(known(_link(gpu))),
    }
    return dict(known(found))


def _link(gpu: Element) -> dict[str, object]:
    at = "pci/pci_gpu_link_info"
    return {
        "generation": _number(gpu, f"{at}/pcie_gen/current_link_gen"),
        "system_generation": _number(gpu, f"{at}/pcie_gen/max_link_gen"),
        "most_generation": _number(gpu, f"{at}/pcie_gen/max_device_link_gen"),
        "lanes": _number(gpu, f"{at}/link_widths/current_link_width"),
        "most_lanes": _number(gpu, f"{at}/link_widths/max_link_width"),
        "replays": _number(gpu, "pci/replay_counter"),
    }


def _slice(device: Element) -> dict[str, Any]:
    """A part of a GPU that MIG cut: it is all that a process sees of it."""
    sm = _number(device, "device_attributes/shared/multiprocessor_count")
    return dict(known({"memory_bytes": _mib(device, "fb_memory_usage/total"), "multiprocessors": sm}))


def _process(process: Element) -> dict[str, Any]:
    command = (_word(process, "process_name") or "").split(" ")[0]
    return dict(
        known(
            {
                "pid": _number(process, "pid"),
                "kind": _word(process, "type"),  # C: computes, G: draws
                "name": os.path.basename(command),
                "memory_bytes": _mib(process, "used_memory"),
            }
        )
    )


def _uncorrected(gpu: Element) -> int | None:
    """Errors of memory since the driver was loaded that ECC could not mend."""
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return None
    found = [int(number.group()) for each in volatile if "uncorrectable" in each.tag if (number := _digits(each.text))]
    return sum(found) if found else None


def _slowed(gpu: Element) -> list[str] | None:
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):  # drivers before 535 say throttle
        reasons = gpu.find(name)
        if reasons is not None:
            return [fault for fault in FAULTS if _word(reasons, f"{name[:-1]}_{fault}") == "Active"]
    return None


def bus_as_kernel(text: str) -> str | None:
    """A place on the bus as the kernel writes it: its domain has four digits, the driver's eight."""
    found = re.fullmatch(r"[0-9A-Fa-f]*([0-9A-Fa-f]{4}):(.+)", text)
    return f"{found.group(1)}:{found.group(2)}".lower() if found else None


def _word(element: Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in _UNTOLD or "deprecated" in text else text


def _switch(element: Element, path: str) -> bool | None:
    word = _word(element, path)
    return None if word is None else word == "Enabled"


def _number(element: Element, path: str) -> int | None:
    found = _digits(_word(element, path))
    return int(found.group()) if found else None


def _mib(element: Element, path: str) -> int | None:
    number = _number(element, path)
    return None if number is None else number * _MIB


def _digits(text: str | None) -> re.Match[str] | None:
    return re.match(r"\d+", (text or "").strip())
