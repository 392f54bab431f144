"""The devices on the PCI bus that matter for training: what they are, and the link they really negotiated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.machine.reading import ROOT, folders, known, memory_node, number, text

# GB/s that one lane carries each way, after encoding, by generation (PCI-SIG: 2.5 to 64 GT/s).
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

# The registry of PCI ids (pci-ids.ucw.cz).
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
VENDORS = {
    NVIDIA: "NVIDIA",
    AMD: "AMD",
    INTEL: "Intel",
    0x10EE: "Xilinx",
    0x1172: "Altera",
    0x12BA: "BittWare",
    0x1BCF: "Achronix",
    0x1D0F: "Amazon",
    0x1AE0: "Google",
    0x1DA3: "Habana",
    0x15B3: "Mellanox",
    0x14E4: "Broadcom",
    0x1DD8: "Pensando",
}
_FPGA_VENDORS = {0x10EE, 0x1172, 0x12BA, 0x1BCF}
_GPU_VENDORS = {NVIDIA, AMD}


def devices(root: Path = ROOT) -> list[dict[str, Any]]:
    """GPUs, network cards, FPGAs and other accelerators; [] where the bus cannot be seen."""
    found = []
    for place in folders(root / "sys/bus/pci/devices"):
        vendor, kind = number(place / "vendor"), number(place / "class")
        if vendor is None or kind is None or not (use := _use(vendor, kind >> 8)):
            continue
        found.append(
            dict(
                known(
                    {
                        "bus": place.name.lower(),
                        "use": use,
                        "vendor": VENDORS.get(vendor, f"0x{vendor:04x}"),
                        "device": text(place / "device"),
                        "driver": _driver(place),
                        "node": memory_node(place),
                        "local_cores": text(place / "local_cpulist"),
                        "root_port": _root_port(place),
                        "rdma": (place / "infiniband").is_dir() or None,
                        **link(place),
                    }
                )
            )
        )
    return found


def link(place: Path) -> dict[str, Any]:
    """Generation and lanes: negotiated now, the most of the device, and the most of the slot above it.

    A device that rests may lower its generation to save power; the number of lanes stays.
    """
    found = {
        "generation": _generation(place / "current_link_speed"),
        "most_generation": _generation(place / "max_link_speed"),
        "lanes": _lanes(place / "current_link_width"),
        "most_lanes": _lanes(place / "max_link_width"),
    }
    try:
        above = place.resolve().parent
    except (OSError, RuntimeError):
        return found
    return found | {
        "slot_generation": _generation(above / "max_link_speed"),
        "slot_lanes": _lanes(above / "max_link_width"),
    }


def bandwidth(link: Mapping[str, Any], generation: str, lanes: str) -> float | None:
    """GB/s each way, by the standard, of this link; None where generation or lanes are not known."""
    speed = LANE_GB_S.get(link.get(generation) or 0)
    return speed * link[lanes] if speed and link.get(lanes) else None


def _use(vendor: int, kind: int) -> str | None:
    if vendor in _FPGA_VENDORS:
        return "fpga"
    if kind in (0x0300, 0x0302) and vendor in _GPU_VENDORS:  # VGA, 3D controller
        return "gpu"
    if kind == 0x0380 and vendor == AMD:  # AMD's accelerators call themselves a display controller
        return "gpu"
    if kind == 0x1200:
        return "gpu" if vendor in _GPU_VENDORS else "accelerator"
    if vendor == NVIDIA and kind == 0x0680:
        return "nvswitch"
    return "network" if kind in (0x0200, 0x0207, 0x0280) else None


def _driver(place: Path) -> str | None:
    driver = place / "driver"
    try:
        return driver.resolve().name if driver.is_symlink() or driver.exists() else None
    except (OSError, RuntimeError):
        return None


def _root_port(place: Path) -> str | None:
    """The processor's port that the device hangs on: what two devices of one port exchange stays on their switch."""
    try:
        found = re.search(r"/pci[0-9a-f]+:[0-9a-f]+/([^/]+)/", str(place.resolve()))
    except (OSError, RuntimeError):
        return None
    return found.group(1).lower() if found else None


def _generation(path: Path) -> int | None:
    try:
        return _GENERATION.get(float(text(path).split()[0]))
    except (IndexError, ValueError):  # "Unknown"
        return None


def _lanes(path: Path) -> int | None:
    lanes = number(path)
    return lanes if lanes and 1 <= lanes <= 32 else None  # a virtual machine may say 0, or 255
