"""AMD's GPUs, as the kernel's driver amdgpu reports them in /sys: no command of ROCm is needed, and no rights.

Files of the device: Documentation/gpu/amdgpu (thermal, driver-misc, ras) of the kernel. Its compute side, KFD, tells in
/sys/class/kfd which instructions it has and how the GPUs are joined. Serial numbers and unique ids are not read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from overdrive.machine import pci
from overdrive.machine.reading import ROOT, first_number, folders, known, memory_node, number, text

_NODES = "sys/class/kfd/kfd/topology/nodes"
_XGMI = 11  # a link's type in KFD: AMD's own between GPUs
_MICRO = 1_000_000  # the sensors tell microwatts


def amd(root: Path = ROOT) -> dict[str, Any] | None:
    """`gpus` that amdgpu drives, `driver`, `rocm`, and `kfd`: whether computing may be asked for. None where there are
    none. A GPU cut into partitions is one GPU, with their number in `partitions`."""
    places = [each for each in folders(root / "sys/bus/pci/devices") if _is_driven(each)]
    if not places:
        return None
    nodes = _nodes(root)
    gpus = [_gpu(place, index, nodes) for index, place in enumerate(places)]
    found: dict[str, object] = {
        "driver": text(root / "sys/module/amdgpu/version"),  # only of the driver that comes with ROCm
        "rocm": text(root / "opt/rocm/.info/version"),
        "kfd": _may_use(root / "dev/kfd"),
        "render": _render(root),
        "gpus": gpus,
        "xgmi": _joined(nodes),
    }
    return dict(known(found))


def _is_driven(place: Path) -> bool:
    return number(place / "vendor") == pci.AMD and (place / "mem_info_vram_total").is_file()


def _gpu(place: Path, index: int, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    sensors = next(iter(folders(place / "hwmon")), place / "no sensors")
    clocks, now = _clocks(place / "pp_dpm_sclk")
    mine = [node for node in nodes if node["bus"] == place.name.lower()]
    described = mine[0] if mine else {}
    name = text(place / "product_name")
    slot_side = _slot_side(place)
    found: dict[str, object] = {
        "index": index,
        "name": name or f"AMD GPU {text(place / 'device')}",
        "bus": place.name.lower(),
        "slot_side_bus": slot_side.name.lower() if slot_side.name != place.name else None,
        "architecture": described.get("architecture"),
        "memory_bytes": number(place / "mem_info_vram_total"),
        "memory_used_bytes": number(place / "mem_info_vram_used"),
        "busy_percent": number(place / "gpu_busy_percent"),
        "sm_mhz": now,
        "most_sm_mhz": max([*clocks, described.get("most_mhz") or 0]) or None,
        "clocks_held": text(place / "power_dpm_force_performance_level"),
        "power_limit_watts": _watts(sensors / "power1_cap"),
        "default_power_limit_watts": _watts(sensors / "power1_cap_default"),
        "most_power_limit_watts": _watts(sensors / "power1_cap_max"),
        "temperature_celsius": _hottest(sensors),
        "uncorrected_errors": _uncorrected(place / "ras"),
        "compute_partition": text(place / "current_compute_partition"),
        "memory_partition": text(place / "current_memory_partition"),
        "partitions": len(mine) or None,
        "node": memory_node(place),
        "local_cores": text(place / "local_cpulist"),
        "pcie": {**known(pci.link(slot_side)), **known({"replays": number(place / "pcie_replay_count")})},
    }
    return dict(known(found))


def _slot_side(place: Path) -> Path:
    """The card's own port to the slot: a Radeon has a switch on the card, behind which its link never changes."""
    try:
        here = place.resolve()
    except (OSError, RuntimeError):
        return place
    while number(here.parent / "vendor") == pci.AMD and (number(here.parent / "class") or 0) >> 8 == 0x0604:
        here = here.parent
    return here


def _clocks(path: Path) -> tuple[list[int], int | None]:
    """All steps in MHz, and that of now, from lines such as "1: 2100Mhz *"."""
    steps, now = [], None
    for found in re.finditer(r"^\w+:\s*(\d+)\s*MHz\s*(\*?)", text(path), re.MULTILINE | re.IGNORECASE):
        steps.append(int(found.group(1)))
        now = steps[-1] if found.group(2) else now
    return steps, now


def _watts(path: Path) -> int | None:
    value = number(path)
    return None if value is None else value // _MICRO


def _hottest(sensors: Path) -> int | None:
    """The hottest of edge, junction and memory, in degrees; the files have thousandths."""
    values = [number(each) for each in sensors.glob("temp*_input")]
    return max((each // 1000 for each in values if each is not None), default=None)


def _uncorrected(folder: Path) -> int | None:
    """Errors that ECC could not correct since the driver was loaded, of all blocks: files "ue: 0", "ce: 12"."""
    found = [re.search(r"^ue:\s*(\d+)", text(each), re.MULTILINE) for each in folder.glob("*_err_count")]
    counts = [int(each.group(1)) for each in found if each]
    return sum(counts) if counts else None


# -- KFD -----------------------------------------------------------------------------------------


def _nodes(root: Path) -> list[dict[str, Any]]:
    """KFD's nodes that compute as GPUs; a partition of one is a node of its own."""
    found = []
    for place in sorted(folders(root / _NODES), key=lambda path: first_number(path.name) or 0):
        properties = _properties(place)
        if not properties.get("gfx_target_version"):
            continue  # a processor
        at = properties.get("location_id", 0)
        bus = f"{properties.get('domain', 0):04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}"
        links = [_properties(each) for each in folders(place / "io_links")]
        found.append(
            {
                "node": first_number(place.name),
                "bus": bus,
                "architecture": _architecture(properties["gfx_target_version"]),
                "most_mhz": properties.get("max_engine_clk_fcompute"),
                "xgmi_to": {each.get("node_to") for each in links if each.get("type") == _XGMI},
            }
        )
    return found


def _architecture(version: int) -> str:
    """ "gfx90a" from 90010: two digits each for minor and stepping, of which the name has one, in hexadecimal."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _properties(folder: Path) -> dict[str, int]:
    """Lines "name number"."""
    words = (line.split() for line in text(folder / "properties").splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) == 2 and each[1].isdigit()}


def _joined(nodes: list[dict[str, Any]]) -> str | None:
    """Whether XGMI joins all GPUs with one another: "all", "some" or "none"; None where there is one."""
    buses = {node["bus"] for node in nodes}
    if len(buses) < 2:
        return None
    by_node = {node["node"]: node["bus"] for node in nodes}
    pairs = {frozenset((node["bus"], by_node[to])) for node in nodes for to in node["xgmi_to"] if to in by_node}
    pairs = {pair for pair in pairs if len(pair) == 2}
    return "all" if len(pairs) == len(buses) * (len(buses) - 1) // 2 else "some" if pairs else "none"


def _may_use(path: Path) -> str:
    """ "yes", "no": it is there, but not for this user, or "absent"."""
    if not path.exists():
        return "absent"
    return "yes" if os.access(path, os.R_OK | os.W_OK) else "no"


def _render(root: Path) -> str:
    """The same of the GPUs' own files: the best of them."""
    found = {_may_use(each) for each in folders(root / "dev/dri") if each.name.startswith("renderD")}
    return next((each for each in ("yes", "no") if each in found), "absent")
