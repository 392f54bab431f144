"""Sockets, memory nodes, clocks and instructions of the processors, and how much of them is granted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from overdrive.core.in_runs import in_runs
from overdrive.machine import cgroup
from overdrive.machine.cpu import cpu
from overdrive.machine.numa import allowed_cores
from overdrive.machine.reading import ROOT, known, number, numbers_in, table, text

# The usual names of the instructions, by the kernel's name for them; the best of a row is reported.
_VECTOR = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sve2", "SVE2"), ("sve", "SVE"), ("asimd", "NEON"))
_SHORT = {
    "avx512_bf16": "bf16",
    "avx512_fp16": "fp16",
    "avx512_vnni": "int8 (VNNI)",
    "bf16": "bf16",
    "i8mm": "int8",
    "amx_bf16": "AMX bf16",
    "amx_int8": "AMX int8",
}


def processors(root: Path = ROOT) -> dict[str, Any]:
    """What the system reports of them; clocks in MHz, the quota in cores, `steal` as a share of all time since boot."""
    found = cpu(root)
    allowed = _allowed(root)
    quota = cgroup.cores(root)
    found |= _counts(root)
    found["allowed_list"] = _listed(allowed)
    found["allowed_cores"] = len(allowed) if allowed else found.get("logical_cores", 1)
    found["granted_cores"] = max(1, min(found["allowed_cores"], int(quota) if quota else found["allowed_cores"]))
    found["quota_cores"] = quota
    found["memory_nodes"] = _nodes(root)
    found["vector"], found["formats"] = instructions(found.get("features", []))
    found["governor"] = text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    found["clock_driver"] = text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")
    for name, file in (("most_mhz", "cpuinfo_max_freq"), ("most_mhz_allowed", "scaling_max_freq")):
        khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq" / file)
        found[name] = khz // 1000 if khz else None
    found["numa_balancing"] = number(root / "proc/sys/kernel/numa_balancing")
    found["load"] = _load(root)
    found["steal"] = _steal(root)
    return known(found)


def _counts(root: Path) -> dict[str, int]:
    """The tree's own, which are this machine's only where the root is "/"; what it does not tell is left out."""
    place = root / "sys/devices/system/cpu"
    online = numbers_in(text(place / "online"))  # a core that is switched off has a folder, and no topology
    folders = [each for each in place.glob("cpu[0-9]*") if not online or int(each.name[3:]) in online]
    cores = {
        (number(each / "topology/physical_package_id"), number(each / "topology/core_id"))
        for each in folders
        if (each / "topology/core_id").is_file()
    }
    sockets = {socket for socket, _ in cores}
    counts = {"logical_cores": len(folders), "physical_cores": len(cores), "sockets": len(sockets)}
    return {name: count for name, count in counts.items() if count}


def instructions(features: list[str]) -> tuple[str | None, list[str]]:
    """The widest vector instructions, and the short number formats that there are instructions for."""
    widest = next((name for feature, name in _VECTOR if feature in features), None)
    return widest, [name for feature, name in _SHORT.items() if feature in features]


def _allowed(root: Path) -> frozenset[int]:
    for name, value in table(root / "proc/self/status"):
        if name == "Cpus_allowed_list":
            return numbers_in(value)
    return allowed_cores() if root == ROOT else frozenset()


def _listed(cores: frozenset[int]) -> str:
    """Numbers as the kernel lists them: "0-3,8"."""
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in in_runs(sorted(cores)))


def _nodes(root: Path) -> list[dict[str, Any]]:
    found = []
    places = (root / "sys/devices/system/node").glob("node[0-9]*")
    for place in sorted(places, key=lambda path: int(path.name[4:])):
        size = next((value for name, value in table(place / "meminfo") if name.endswith("MemTotal")), "")
        amount = size.split()
        found.append(
            {
                "node": int(place.name[4:]),
                "cores": text(place / "cpulist"),
                "memory_bytes": int(amount[0]) * 1024 if amount and amount[0].isdigit() else None,
            }
        )
    return [dict(known(each)) for each in found]


def _load(root: Path) -> float | None:
    """Threads that ran or wanted to, over the last minute."""
    words = text(root / "proc/loadavg").split()
    if words:
        with contextlib.suppress(ValueError):
            return float(words[0])
    return None


def _steal(root: Path) -> float | None:
    """The share of time in which the hypervisor gave the processor to others."""
    first = text(root / "proc/stat").partition("\n")[0].split()
    if len(first) < 9 or first[0] != "cpu" or not all(word.isdigit() for word in first[1:9]):
        return None
    spent = [int(word) for word in first[1:9]]
    return round(spent[7] / sum(spent), 4) if sum(spent) else None
