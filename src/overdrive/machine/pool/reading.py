"""What one rank tells of its host: links, the interface it talks over, limits, versions, variables."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from overdrive.machine.acs import redirecting_bridges
from overdrive.machine.network import network
from overdrive.machine.pages import pages
from overdrive.machine.reading import ROOT, folders, known, number, text
from overdrive.version import __version__

_PREFIXES = ("NCCL_", "GLOO_", "UCX_")


def reading(address: str) -> dict[str, Any]:
    """In JSON's types.

    Args:
        address: of the rank that all meet at.
    """
    return {
        "host": socket.gethostname(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)},
        "interface": _interface(address, os.environ),
        "interfaces": interfaces(ROOT),
        "network": network(ROOT),
        "memory": pages(ROOT),
        "gpus": len(folders(ROOT / "proc/driver/nvidia/gpus")),
        "acs": redirecting_bridges(ROOT),
        "versions": _versions(ROOT),
    }


def interfaces(root: Path = ROOT) -> list[dict[str, Any]]:
    """All that are up, the loopback among them; `device`: whether there is a card behind it."""
    found = []
    for place in folders(root / "sys/class/net"):
        speed = number(place / "speed")  # Mb/s; -1: not told
        if text(place / "operstate") == "down" or (place / "master").exists():  # of a bond or a bridge, without address
            continue
        told = {
            "name": place.name,
            "mtu": number(place / "mtu"),
            "gigabits_per_second": speed / 1000 if speed and speed > 0 else None,
        }
        # A bond, a bridge or a VLAN has no card of its own, and others below it.
        found.append({**known(told), "device": (place / "device").exists() or any(place.glob("lower_*"))})
    return found


def _interface(address: str, environment: Mapping[str, str]) -> str:
    """Over which sockets go: the one that is asked for, else that of the way to where ranks meet; "" not known."""
    asked = environment.get("GLOO_SOCKET_IFNAME") or environment.get("NCCL_SOCKET_IFNAME", "").lstrip("=^")
    if asked and not environment.get("NCCL_SOCKET_IFNAME", "").startswith("^"):
        return asked.split(",")[0]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((address, 9))  # sends nothing: the system only says from where it would
        return _with_address(way.getsockname()[0])
    return ""


def _with_address(own: str) -> str:
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == own for each in addresses):
            return str(name)
    return ""


def _versions(root: Path) -> dict[str, str]:
    found = {"overdrive": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        with contextlib.suppress(PackageNotFoundError):
            found[name.partition("-cu")[0]] = version(name)
    driver = text(root / "proc/driver/nvidia/version").partition("Module")[2].split()
    if driver:
        found["driver"] = next((word for word in driver if word[:1].isdigit()), driver[0])
    found["platform"] = sys.platform
    return found
