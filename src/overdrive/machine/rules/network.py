"""Findings about InfiniBand and RoCE: ports that are down, slow or in error, and GPUDirect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overdrive.core.units import several
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of

_ABI = "https://docs.kernel.org/admin-guide/abi-stable.html#symbols-under-sys-class-infiniband"
_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#gpu-direct-rdma-gdr"
_MANY_ERRORS = 100  # a few come with every plugging of a cable


def _ports(survey: Survey) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = survey["network"].get("ports", [])
    return found


def _name(port: dict[str, Any]) -> str:
    return f"{port['card']} port {port['port']}"


def down(survey: Survey) -> Iterator[Finding]:
    """A port that nobody plugged anything into is down on many a sound machine; one that was up before is not."""
    ports = _ports(survey)
    working = [port for port in ports if port["state"] == "ACTIVE"]
    for port in ports:
        if port["state"] == "ACTIVE":
            continue
        waiting = port["state"] in ("INIT", "ARMED")
        lost = bool(port.get("errors", {}).get("link_downed")) and port.get("physical_state") != "Disabled"
        alike = any(other.get("link_layer") == port.get("link_layer") for other in working)
        severity = Severity.WRONG if waiting or lost else Severity.ADVICE if alike else Severity.NOTE
        yield finding(
            "port_down",
            (severity, Basis.COMPUTED, Sure.LIKELY if severity is Severity.WRONG else Sure.POSSIBLE),
            f"{_name(port)} ({port.get('link_layer', 'InfiniBand')}) is {port['state']}"
            + (f", its link {port['physical_state']}" if port.get("physical_state") else "")
            + ("; it was up before." if lost else "."),
            f"{len(working)} of {several(len(ports), 'port')} carry data; NCCL leaves this one out, or waits for it."
            if working
            else "Nothing goes over it.",
            "The cable works, but no subnet manager has given it an address: start one (opensm, or on the switch)."
            if waiting
            else "Look at cable, transceiver and switch port; if it is not to be used, take it out of NCCL_IB_HCA.",
            f"ibstat {port['card']} {port['port']}",
            _ABI,
        )


def slow(survey: Survey) -> Iterator[Finding]:
    ports = [port for port in _ports(survey) if port["state"] == "ACTIVE"]
    for port in ports:
        rate, lanes = port.get("gigabits_per_second"), port.get("lanes")
        alike = [
            other.get("gigabits_per_second") or 0
            for other in ports
            if other.get("link_layer") == port.get("link_layer") and other["card"].rstrip("0123456789") in port["card"]
        ]
        best = max(alike, default=0)
        # HDR100, NDR200 and split cables have two lanes by design.
        split = lanes == 2 and any(each in str(port.get("rate", "")) for each in ("HDR", "NDR", "XDR"))
        narrow = port.get("link_layer") == "InfiniBand" and lanes is not None and lanes < 4 and not split
        if rate and (narrow or (len(alike) > 2 and rate < best and alike.count(best) > len(alike) / 2)):
            could = best if best > rate else None
            yield finding(
                "port_slow",
                (Severity.WRONG, Basis.COMPUTED, Sure.LIKELY),
                f"{_name(port)} runs at {port.get('rate') or rate}"
                + (f"; the others run at {could:g} Gb/s." if could else ", of four lanes."),
                f"{rate / could:.0%} of the others' speed; collectives wait for the slowest."
                if could
                else f"{lanes} of 4 lanes.",
                "Seat or replace cable and transceiver, and look at the switch port's speed.",
                f"ibstat {port['card']} {port['port']}",
                _ABI,
            )


def errors(survey: Survey) -> Iterator[Finding]:
    for port in _ports(survey):
        counts = port.get("errors", {})
        if not counts or port["state"] != "ACTIVE":
            continue
        total = sum(counts.values())
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        many = total >= _MANY_ERRORS
        at = f"-C {port['card']} -P {port['port']}"
        # How fast they come is not reported, so many are only called wrong where the link was lost for them, too.
        lost = bool(counts.get("link_downed") or counts.get("link_error_recovery"))
        yield finding(
            "port_errors",
            (
                (Severity.WRONG if lost else Severity.ADVICE) if many else Severity.NOTE,
                Basis.MEASURED,
                Sure.LIKELY if many else Sure.POSSIBLE,
            ),
            f"{_name(port)} counted errors: {listed}.",
            "Packets are sent again; how often now, the counters do not tell: they run since they were cleared.",
            "Clear the counters, put load on, and read them again; if they rise, replace the cable.",
            f"perfquery -R {at} && sleep 60 && perfquery {at}",
            _ABI,
        )


def gpudirect(survey: Survey) -> Iterator[Finding]:
    network = survey["network"]
    active = [port for port in _ports(survey) if port["state"] == "ACTIVE"]
    if not gpus_of(survey) or not active or network.get("peer_memory_module"):
        return
    if network.get("open_gpu_driver") and _kernel(network.get("kernel", "")) >= (5, 12):
        return  # DMA-BUF does the same, without the module (NCCL 2.13 and later)
    yield finding(
        "gpudirect",
        (Severity.ADVICE, Basis.CITED, Sure.LIKELY),
        "GPUs and network cards are there, but nvidia_peermem is not loaded, and the driver has no DMA-BUF.",
        "What goes between machines is copied through the main memory (no GPUDirect RDMA).",
        "Load the module; or install the open kernel modules of the driver.",
        "sudo modprobe nvidia-peermem",
        _TROUBLE,
    )


def _kernel(release: str) -> tuple[int, ...]:
    parts = release.split(".")[:2]
    return tuple(int(part) for part in parts) if len(parts) == 2 and all(part.isdigit() for part in parts) else (0,)


RULES = (down, slow, errors, gpudirect)
