"""Whether PCIe bridges send what devices say to each other up to the processor (Access Control Services)."""

from __future__ import annotations

from pathlib import Path

from overdrive.machine.reading import ROOT, folders, text

_BRIDGE = "0x0604"  # the first digits of a PCI bridge's class
_EXTENDED, _WHOLE = 0x100, 4096  # bytes: where capabilities begin that only root may read, and where they end
_ACS = 0x000D
_ON = 0x1D  # source validation, request and completion redirect, upstream forwarding: each sends it up


def redirecting_bridges(root: Path = ROOT) -> list[str] | None:
    """Those that do, by bus number; None where this user may not read it, which only root may."""
    found: list[str] | None = None
    for place in folders(root / "sys/bus/pci/devices"):
        if text(place / "class").startswith(_BRIDGE):
            config = _read(place / "config")
            if len(config) > _EXTENDED:
                found = found or []
                if _control(config) & _ON:
                    found.append(place.name)
    return found


def _control(config: bytes) -> int:
    """The control register of ACS; 0 where there is none."""
    at, seen = _EXTENDED, set()
    while _EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return 0


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_WHOLE)
    except OSError:
        return b""
