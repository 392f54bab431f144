"""InfiniBand and RoCE ports, Ethernet, and whether a GPU's memory can be reached from the network (GPUDirect)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from overdrive.machine.reading import ROOT, folders, known, memory_node, number, text

# Errors since the counters were cleared, by the kernel's names (Documentation/ABI/stable/sysfs-class-infiniband).
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_DISCARDS = ("port_xmit_discards", "port_xmit_wait")


def network(root: Path = ROOT) -> dict[str, Any]:
    """`ports` of InfiniBand and RoCE, `ethernet` with Gb/s where told, and what GPUDirect RDMA would need."""
    return {
        "ports": [
            port
            for card in folders(root / "sys/class/infiniband")
            for place in folders(card / "ports")
            if (port := _port(card.name, place))
        ],
        "ethernet": _ethernet(root),
        "peer_memory_module": any((root / "sys/module" / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")),
        "open_gpu_driver": "Open Kernel Module" in text(root / "proc/driver/nvidia/version"),
        "kernel": text(root / "proc/sys/kernel/osrelease"),
    }


def _port(card: str, place: Path) -> dict[str, Any] | None:
    state = text(place / "state")
    if not state:
        return None
    rate = text(place / "rate")  # such as "400 Gb/sec (4X NDR)"
    gigabits = re.match(r"([\d.]+)\s*Gb/sec", rate)
    lanes = re.search(r"\((\d+)X", rate)
    counters = place / "counters"
    errors = {name: count for name in _ERRORS if (count := number(counters / name))}
    return dict(
        known(
            {
                "card": card,
                "port": place.name,
                "state": state.partition(":")[2].strip() or state,  # "4: ACTIVE"
                "physical_state": text(place / "phys_state").partition(":")[2].strip(),
                "link_layer": text(place / "link_layer"),
                "gigabits_per_second": float(gigabits.group(1)) if gigabits else None,
                "lanes": int(lanes.group(1)) if lanes else None,
                "rate": rate,
                "errors": errors,
                "discards": {name: count for name in _DISCARDS if (count := number(counters / name))},
                "node": memory_node(place.parent.parent / "device"),
            }
        )
    )


def _ethernet(root: Path) -> list[dict[str, Any]]:
    """Ethernet cards, of real ones only: those that have a device."""
    found = []
    for place in folders(root / "sys/class/net"):
        if (place / "device").exists():
            speed = number(place / "speed")  # Mb/s; -1: not told
            gigabits = speed / 1000 if speed and speed > 0 else None
            up = text(place / "operstate")
            found.append(dict(known({"name": place.name, "state": up, "gigabits_per_second": gigabits})))
    return found
