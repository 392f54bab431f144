"""All that doctor looks at, part by part; what could not be looked at is named, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overdrive.machine import pci
from overdrive.machine.amd import amd
from overdrive.machine.frameworks import frameworks
from overdrive.machine.inventory import operating_system
from overdrive.machine.loaded import libraries
from overdrive.machine.loaded_tensorflow import tensorflow
from overdrive.machine.network import network
from overdrive.machine.nvml import nvml
from overdrive.machine.pages import pages
from overdrive.machine.processors import processors
from overdrive.machine.reading import ROOT
from overdrive.machine.scheduler import scheduler
from overdrive.machine.storage import storage

# Only variables of these libraries are looked at: an environment also holds keys and passwords.
# fmt: off
_TELLING = (
    "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "NCCL_", "TORCH", "PYTORCH_", "ATEN_", "TF_", "XLA_", "UCX_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "HIP_", "HSA_", "ROCR_", "MIOPEN_", "AMD_", "MALLOC_",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONDONTWRITEBYTECODE",
)
# fmt: on


def telling(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that decide on speed, by name."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_TELLING)}


def survey(
    root: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    load: bool = True,
    ask_nvml: Callable[[], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Parts by name, in JSON's types; `left_out` holds what and why. Never raises.

    Args:
        root: where /proc and /sys are looked for: a recorded tree, in tests.
        environment: the variables of the program that is to run.
        load: whether to load the frameworks in a child process and ask them (some seconds).
        ask_nvml: asks NVML; by default NVML itself, where this machine is looked at.
    """
    environment = dict(os.environ if environment is None else environment)
    left_out: list[dict[str, str]] = []

    def part(name: str, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except Exception as error:
            left_out.append({"what": name, "why": f"{type(error).__name__}: {error}"})
            return None

    if ask_nvml is None and root == ROOT:
        ask_nvml = nvml
    answer = (part("NVML", ask_nvml) if ask_nvml else None) or {}
    joined = answer.pop("topology", None)
    found: dict[str, Any] = {
        "os": part("operating system", operating_system) if root == ROOT else None,
        "cpu": part("processors", lambda: processors(root)) or {},
        "memory": part("memory", lambda: pages(root)) or {},
        "storage": part("storage", lambda: storage(root, environment)) or [],
        "pci": part("PCI devices", lambda: pci.devices(root)) or [],
        "network": part("network", lambda: network(root)) or {},
        "scheduler": part("scheduler", lambda: scheduler(environment, root)) or {},
        "nvidia": answer if "gpus" in answer else None,
        "amd": part("AMD GPUs", lambda: amd(root)),
        "software": part("software", lambda: frameworks(root)) or {},
        "environment": telling(environment),
    }
    gpus = (found["nvidia"] or {}).get("gpus", [])
    found["topology"] = joined if gpus else None
    _place(gpus, found["pci"])
    found["loaded"] = part("loaded libraries", lambda: libraries(environment)) if load else None
    with_tensorflow = load and bool(found["software"].get("tensorflow"))
    loaded = part("TensorFlow", lambda: tensorflow(environment)) if with_tensorflow else None
    if loaded is not None and found["loaded"] is not None:
        found["loaded"]["tensorflow"] = loaded
    nothing = "the child process gave no answer" if load else "not asked for"
    left_out += _not_seen(found, answer, root, nothing, with_tensorflow and loaded is None)
    found["left_out"] = left_out
    return found


def _not_seen(
    found: Mapping[str, Any], nvml_answer: Mapping[str, Any], root: Path, nothing: str, no_tensorflow: bool
) -> list[dict[str, str]]:
    """What is not there, though it should be, or though nobody could have seen it."""
    blind = not (root / "sys/bus/pci/devices").is_dir()
    expected = blind or any(device["use"] == "gpu" and device["vendor"] == "NVIDIA" for device in found["pci"])
    missing = (
        ("NVIDIA GPUs", found["nvidia"] is None and expected, nvml_answer.get("why", "NVML was not asked")),
        ("PCI devices", blind, "/sys/bus/pci is not to be seen here"),
        ("loaded libraries", found["loaded"] is None, nothing),
        ("TensorFlow", no_tensorflow, nothing),
    )
    return [{"what": what, "why": why} for what, is_missing, why in missing if is_missing]


def _place(gpus: list[dict[str, Any]], devices: list[dict[str, Any]]) -> None:
    """Adds to each GPU what the bus tells of its place: the memory node, the cores near it, its slot."""
    by_bus = {device["bus"]: device for device in devices}
    for gpu in gpus:
        device = by_bus.get(gpu.get("bus", ""), {})
        gpu |= {
            name: device[name] for name in ("node", "local_cores", "root_port") if device.get(name) not in (None, "")
        }
        gpu["pcie"] |= {name: device[name] for name in ("slot_generation", "slot_lanes") if device.get(name)}
