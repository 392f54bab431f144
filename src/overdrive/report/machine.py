"""Describes a machine in short lines for people: (name, description)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from overdrive.core.units import listed, several

_GIB = 2**30


def lines(machine: Mapping[str, Any], software: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line for each part that there is; of GPUs also that there is none."""
    parts = (
        ("CPU", _cpu(machine["cpu"])),
        ("Memory", _memory(machine["memory"])),
        *(_gpu_lines(machine)),
        ("Network", _network(machine["network"])),
        ("Accelerators", _others(machine["pci"])),
        ("Storage", _storage(machine["storage"])),
        ("Runs in", _scheduler(machine["scheduler"])),
        ("Software", _software(software)),
        ("Libraries", _libraries(software)),
    )
    yield from ((name, said) for name, said in parts if said)


def gib(count: float | None) -> str:
    if count is None:
        return "?"
    if count < 2**20:
        return f"{count / 2**10:.0f} KiB"
    if count < _GIB:
        return f"{count / 2**20:.0f} MiB"
    return f"{count / _GIB:,.0f} GiB" if count >= 10 * _GIB else f"{count / _GIB:.1f} GiB"


def _cpu(cpu: Mapping[str, Any]) -> str:
    words = [cpu.get("model") or cpu.get("architecture") or "unknown"]
    sockets, physical, logical = (cpu.get(name) for name in ("sockets", "physical_cores", "logical_cores"))
    if sockets and sockets > 1:
        words[0] = f"{sockets} × {words[0]}"
    if logical:
        threads = f" ({logical} threads)" if physical and physical != logical else ""
        words.append(f"{several(physical or logical, 'core')}{threads}")
    if cpu.get("granted_cores") and cpu["granted_cores"] != logical:
        words.append(f"{cpu['granted_cores']} granted")
    nodes = len(cpu.get("memory_nodes", []))
    if nodes > 1:
        words.append(f"{nodes} memory nodes")
    vector, formats = cpu.get("vector"), cpu.get("formats", [])
    if vector:
        words.append(f"{vector} with {', '.join(formats)}" if formats else f"{vector}, no bf16")
    return ", ".join(words)


def _memory(memory: Mapping[str, Any]) -> str:
    if "memory_bytes" not in memory:
        return ""
    words = [gib(memory["memory_bytes"])]
    granted = memory.get("granted_bytes")
    if granted and granted != memory["memory_bytes"]:
        words.append(f"{gib(granted)} granted")
    if "available_bytes" in memory:
        words.append(f"{gib(memory['available_bytes'])} free")
    if "shared_memory_bytes" in memory:
        words.append(f"/dev/shm {gib(memory['shared_memory_bytes'])}")
    pages = memory.get("transparent_hugepages")
    if pages:
        modes = {"always": "always", "madvise": "on request", "never": "off"}
        words.append(f"huge pages {modes.get(pages, pages)}")
    locked = memory.get("locked_bytes")
    if locked is not None:
        words.append(f"may lock {gib(locked) if isinstance(locked, int) else 'all of it'}")
    return ", ".join(words)


def _gpu_lines(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    nvidia = machine["nvidia"] or {}
    gpus = nvidia.get("gpus", [])
    amd = machine.get("amd") or {}
    known = {gpu.get("bus") for gpu in amd.get("gpus", [])}
    seen = [device for device in machine["pci"] if device["use"] == "gpu" and device["bus"] not in known]
    if not gpus and known:
        kinds = Counter(_gpu(gpu) for gpu in amd["gpus"])
        rows = [("GPU", f"{count} × {said}" if count > 1 else said) for said, count in kinds.items()]
        joined = {"all": "joined by XGMI", "some": "joined by XGMI in part"}.get(amd.get("xgmi", ""))
        return [*rows, ("", joined)] if joined else rows
    if not gpus:
        others = Counter(f"{device['vendor']} {device.get('device', '')}".strip() for device in seen)
        return [("GPU", "; ".join(f"{count} × {name}" for name, count in others.items()) or "none")]
    kinds = Counter(_gpu(gpu) for gpu in gpus)
    found = [("GPU", f"{count} × {said}" if count > 1 else said) for said, count in kinds.items()]
    joined = _joined(machine.get("topology") or {}, len(gpus))
    return [*found, ("", joined)] if joined else found


def _gpu(gpu: Mapping[str, Any]) -> str:
    if gpu.get("unreachable"):
        return "does not answer"
    words = [gpu.get("name", "unknown"), gib(gpu.get("memory_bytes"))]
    if "architecture" in gpu:
        words[0] += f" ({gpu['architecture']})"
    for key, pattern in (("power_limit_watts", "{} W"), ("most_sm_mhz", "up to {} MHz")):
        if key in gpu:
            words.append(pattern.format(gpu[key]))
    link = gpu.get("pcie", {})
    best = min(link.get("system_generation") or link.get("slot_generation") or 9, link.get("most_generation") or 9)
    if link.get("lanes"):
        most = link.get("most_lanes")
        of = f" (of {most})" if most and most != link["lanes"] else ""
        words.append(f"PCIe {best} x{link['lanes']}{of}" if best < 9 else f"PCIe x{link['lanes']}{of}")
    if "ecc" in gpu:
        words.append("ECC" if gpu["ecc"] else "no ECC")
    if gpu.get("compute_partition") not in (None, "SPX"):
        words.append(f"{gpu['compute_partition']}: {several(gpu.get('partitions', 1), 'part')}")
    if gpu.get("mig"):
        words.append(f"MIG: {several(len(gpu.get('slices', [])), 'slice')}")
    return ", ".join(words)


def _joined(topology: Mapping[str, Any], gpus: int) -> str:
    if gpus < 2:
        return ""
    kinds = Counter(link for row in topology.get("gpus", []) for link in row if link not in ("X", ""))
    words = []
    for kind, _ in kinds.most_common(3):
        words.append(f"{kind[2:]} NVLinks" if kind.startswith("NV") else f"PCIe ({kind})")
    states = topology.get("nvlinks") or []
    speed = f", {states[0]['gb_per_second']:g} GB/s each way" if states and states[0]["active"] else ""
    return f"joined by {' or '.join(words)}{speed}" if words else ""


def _network(network: Mapping[str, Any]) -> str:
    ports = Counter(
        f"{port.get('link_layer', 'InfiniBand')} {port['gigabits_per_second']:g} Gb/s"
        if port["state"] == "ACTIVE" and port.get("gigabits_per_second")
        else f"{port.get('link_layer', 'InfiniBand')} {port['state'].lower()}"
        for port in network.get("ports", [])
    )
    words = [f"{count} × {said}" for said, count in ports.items()]
    for card in network.get("ethernet", []):
        if card.get("state") == "up":
            speed = f" {card['gigabits_per_second']:g} Gb/s" if "gigabits_per_second" in card else ""
            words.append(f"{card['name']}{speed}")
    return ", ".join(words)


def _others(devices: list[Mapping[str, Any]]) -> str:
    kinds = Counter(
        f"{device['vendor']} {'FPGA' if device['use'] == 'fpga' else 'accelerator'} {device.get('device', '')}".strip()
        for device in devices
        if device["use"] in ("fpga", "accelerator")
    )
    return ", ".join(f"{count} × {name}" if count > 1 else name for name, count in kinds.items())


def _storage(places: list[Mapping[str, Any]]) -> str:
    uses: dict[str, list[str]] = {}
    for place in places:
        free = f", {gib(place['free_bytes'])} free" if "free_bytes" in place else ""
        uses.setdefault(f"{place['mount']} ({place['kind']}, {place['type']}{free})", []).append(place["use"])
    if len(uses) == 1:
        return f"all on {next(iter(uses))}"
    return "; ".join(f"{listed(names)} on {place}" for place, names in uses.items())


def _scheduler(found: Mapping[str, Any]) -> str:
    words = [found["name"]] if "name" in found else []
    if found.get("container"):
        words.append(f"{found['container']} container" if found["container"] != "container" else "a container")
    for key, noun in (("cores", "core"), ("gpus", "GPU"), ("tasks", "task"), ("hosts", "host")):
        if found.get(key):
            words.append(several(found[key], noun))
    if found.get("memory_bytes"):
        words.append(gib(found["memory_bytes"]))
    return ", ".join(words)


def _software(software: Mapping[str, Any]) -> str:
    versions, loaded = software.get("versions", {}), software.get("loaded") or {}
    words = [f"Python {versions['python']}"] if "python" in versions else []
    if build := software.get("torch"):
        built = f"CUDA {build['cuda']}" if build["cuda"] else f"ROCm {build['hip']}" if build["hip"] else "CPU"
        details = [f"built for {built}"]
        running = loaded.get("torch") or {}
        if running.get("threads"):
            details.append(several(running["threads"], "thread"))
        if running.get("cpu_capability"):
            details.append(running["cpu_capability"])
        words.append(f"PyTorch {build['version']} ({', '.join(details)})")
    else:
        words.append("no PyTorch")
    if "tensorflow" in versions:
        build = software.get("tensorflow") or {}
        running = loaded.get("tensorflow") or {}
        details = [f"{'CUDA' if build.get('cuda') else 'CPU'} build"]
        if running.get("threads"):
            details.append(several(running["threads"], "thread"))
        if "onednn" in running:
            details.append("oneDNN" if running["onednn"] else "without oneDNN")
        words.append(f"TensorFlow {versions['tensorflow']} ({', '.join(details)})")
    others = (("keras", "Keras"), ("jax", "JAX"), ("numpy", "NumPy"))
    words += [f"{name} {versions[package]}" for package, name in others if package in versions]
    return ", ".join(words)


def _libraries(software: Mapping[str, Any]) -> str:
    loaded = software.get("loaded") or {}
    words = []
    if software.get("driver"):
        words.append(f"driver {software['driver']} (CUDA {software.get('driver_cuda', '?')})")
    words += [f"{name} {version}" for name, version in software.get("libraries", {}).items()]
    blas = (loaded.get("torch") or {}).get("blas")
    if blas:
        words.append(f"PyTorch's BLAS {blas.upper()}")
    names = {"scipy_openblas": "OpenBLAS", "openblas": "OpenBLAS", "mkl_rt": "MKL", "mkl_core": "MKL"}
    others = dict.fromkeys(
        names.get(each["library"], each["library"]) for each in loaded.get("blas", []) if each["of"] == "numpy"
    )
    words += [f"NumPy's {name}" for name in others]
    openmp = Counter(each["runtime"] for each in loaded.get("openmp", []))
    words += [f"{count} × {name}" if count > 1 else name for name, count in openmp.items()]
    words += loaded.get("allocators", [])
    return ", ".join(words)
