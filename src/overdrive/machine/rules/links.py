"""Findings about what joins GPUs to the machine and to one another: PCIe lanes, NVLink, memory nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overdrive.core.units import several
from overdrive.machine.pci import LANE_GB_S, bandwidth
from overdrive.machine.reading import numbers_in
from overdrive.machine.rules.amd import amd_of
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of, named

_TROUBLE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def lanes(survey: Survey) -> Iterator[Finding]:
    """Lanes are not given up to save power, so fewer than there could be is for good."""
    for gpu in gpus_of(survey):
        yield from _few_lanes(gpu, "pcie_lanes", "GPU")
    for gpu in amd_of(survey):
        yield from _few_lanes(gpu, "amd_pcie_lanes", "AMD GPU")


def _few_lanes(gpu: dict[str, Any], rule: str, kind: str) -> Iterator[Finding]:
    link = gpu["pcie"]
    now, most, slot = link.get("lanes"), link.get("most_lanes"), link.get("slot_lanes")
    if not now or not most or now >= most:
        return
    machine = link.get("system_generation") or link.get("slot_generation") or 9
    best = {**link, "best": min(machine, link.get("most_generation") or 9)}
    here, could = bandwidth(best, "best", "lanes"), bandwidth(best, "best", "most_lanes")
    yield finding(
        rule,
        (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
        f"{kind} {gpu['index']} is joined by {now} of its {most} PCIe lanes.",
        f"Copies from and to it go at {now / most:.0%} of the speed"
        + (f": at most {here:.1f} instead of {could:.1f} GB/s each way." if here and could else "."),
        f"The slot has only {several(slot, 'lane')}: put the card into one with {most}."
        if slot and slot <= now
        else "Seat the card anew, without a riser; look in the BIOS whether the slot shares its lanes with a disk.",
        f"sudo lspci -vv -s {gpu.get('slot_side_bus', gpu.get('bus', ''))} | grep -E 'LnkCap|LnkSta'",
    )


def generation(survey: Survey) -> Iterator[Finding]:
    """What the whole path can do, not what it does now: a GPU that rests lowers its generation."""
    gpus = gpus_of(survey)
    slow = [
        gpu for gpu in gpus if (gpu["pcie"].get("system_generation") or 9) < (gpu["pcie"].get("most_generation") or 0)
    ]
    if slow:
        could, can = slow[0]["pcie"]["most_generation"], slow[0]["pcie"]["system_generation"]
        share = LANE_GB_S.get(can, 0) / LANE_GB_S.get(could, 1)
        yield finding(
            "pcie_generation",
            (Severity.ADVICE, Basis.COMPUTED, Sure.LIKELY),
            f"{named(slow, len(gpus))} could speak PCIe {could}, the machine allows PCIe {can}.",
            f"Copies from and to it go at {share:.0%} of what the card could do." if share else "Copies are slower.",
            "Set the slot's speed to Auto in the BIOS; an older board or a riser cannot do more.",
        )


def replays(survey: Survey) -> Iterator[Finding]:
    for gpu in gpus_of(survey):
        count = gpu["pcie"].get("replays") or 0
        if count > 100:
            yield finding(
                "pcie_replays",
                (Severity.ADVICE, Basis.MEASURED, Sure.POSSIBLE),
                f"GPU {gpu['index']}: {count:,} PCIe packets had to be sent again since the driver was loaded.",
                "Each costs a round trip; a rising number is a bad contact.",
                "Look whether it rises under load; if so, seat the card anew.",
                f"nvidia-smi --query-gpu=pcie.replay_counter --format=csv -i {gpu['index']}",
            )


def _should_be_joined(
    index: int, states: Sequence[Mapping[str, Any]], topology: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether a GPU without links lacks them: all others, three or more of its kind, are joined to each other. Beside
    two with a bridge a third has none."""
    rows = topology.get("gpus") or []
    linked = [number for number, state in enumerate(states) if state["active"]]
    whole = len(linked) > 2 and all(rows[a][b].startswith("NV") for a in linked for b in linked if a != b)
    return whole and gpus[index].get("name") == gpus[linked[0]].get("name")


def nvlinks(survey: Survey) -> Iterator[Finding]:
    topology = survey.get("topology") or {}
    states = topology.get("nvlinks") or []
    most = max((state["active"] for state in states), default=0)
    lame = [
        index
        for index, state in enumerate(states)
        if state["active"] < most and (state["active"] or _should_be_joined(index, states, topology, gpus_of(survey)))
    ]
    for index in lame:
        missing = most - states[index]["active"]
        yield finding(
            "nvlink_down",
            (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
            f"GPU {index} has {states[index]['active']} NVLinks, its neighbours {most}.",
            f"It exchanges data at {states[index]['active'] / most:.0%} of their speed, and they wait for it.",
            f"{several(missing, 'link')} did not train: reset the GPUs, or restart; if it stays, have it seen to.",
            f"nvidia-smi nvlink -s -i {index} && nvidia-smi nvlink -e -i {index}",
        )
    if lame:
        return
    counts = {int(link[2:]) for row in topology.get("gpus", []) for link in row if re.fullmatch(r"NV\d+", link)}
    plain = sum(link in ("PIX", "PXB", "PHB", "NODE", "SYS") for row in topology.get("gpus", []) for link in row)
    if len(counts) > 1 or (counts and plain):
        yield finding(
            "nvlink_uneven",
            (Severity.NOTE, Basis.COMPUTED, Sure.CERTAIN),
            "Not all pairs of GPUs are joined by as many NVLinks.",
            "A group of GPUs is as fast as its slowest pair.",
            "For jobs on some of the GPUs choose those that are joined best.",
            "nvidia-smi topo -m",
        )


def far_cores(survey: Survey) -> Iterator[Finding]:
    """The cores that this process may use, and those beside the GPU."""
    allowed = survey["cpu"].get("allowed_list")
    mine = numbers_in(allowed) if allowed else frozenset()
    for gpu in gpus_of(survey):
        near = numbers_in(gpu.get("local_cores", ""))
        if mine and near and not mine & near:
            yield finding(
                "far_cores",
                (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
                f"This process may use none of the cores beside GPU {gpu['index']} ({gpu['local_cores']}).",
                "Copies and kernel launches cross from one processor to the other.",
                "Bind the process to the GPU's node.",
                f"numactl --cpunodebind={gpu['node']} --membind={gpu['node']} python ..." if "node" in gpu else "",
                "https://docs.kernel.org/admin-guide/mm/numaperf.html",
            )


def far_cards(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    cards = [device for device in survey["pci"] if device.get("rdma")]
    near = {card["root_port"] for card in cards if "root_port" in card}
    far = [gpu for gpu in gpus if gpu.get("root_port") not in near]
    if cards and far and len(gpus) > 1:
        yield finding(
            "far_network_card",
            (Severity.NOTE, Basis.CITED, Sure.CERTAIN),
            f"{several(len(far), 'GPU')} of {len(gpus)} have no network card on their own PCIe switch.",
            "What they send to other machines goes through the processor.",
            "Nothing on this machine; NCCL finds the nearest card by itself.",
            "nvidia-smi topo -m",
            _TROUBLE,
        )


RULES = (lanes, nvlinks, generation, replays, far_cores, far_cards)
