"""What a pool's links can carry, and which share of it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overdrive.machine.rules.variables import is_on


def link(ranks: Sequence[Mapping[str, Any]], backend: str, bus_bytes_per_second: float) -> dict[str, Any] | None:
    """The slowest host's way out, and the share of it that an all-reduce reached; None within one host, and where
    no rate is told.

    Args:
        bus_bytes_per_second: of the best all-reduce.
    """
    hosts = {each["host"]: each for each in ranks}
    if len(hosts) < 2:
        return None
    ways = [_way(each, backend) for each in hosts.values()]
    if any(way is None for way in ways):
        return None
    rate, what = min(way for way in ways if way)
    return {"what": what, "gigabits_per_second": rate, "share": bus_bytes_per_second * 8 / (rate * 1e9)}


def _way(reading: Mapping[str, Any], backend: str) -> tuple[float, str] | None:
    """Gb/s, and over what: all working ports together under NCCL, else the interface that sockets use."""
    ports = [port for port in reading["network"].get("ports", []) if port["state"] == "ACTIVE"]
    sockets = is_on(reading["environment"].get("NCCL_IB_DISABLE", "")) or backend != "nccl"
    if ports and not sockets:
        rates = [port.get("gigabits_per_second") for port in ports]
        return (float(sum(rates)), f"{len(ports)} ports of {reading['host']}") if all(rates) else None
    for each in reading["interfaces"]:
        if each["name"] == reading["interface"] and each.get("gigabits_per_second"):
            return float(each["gigabits_per_second"]), f"{each['name']} of {reading['host']}"
    return None
