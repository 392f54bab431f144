"""Findings from measured limits: the machine does less than it should.

The limits lie in `survey["limits"]`: {name: {"value", "unit", "how"}}, as `machine.limits` names them.
"""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.machine.pci import bandwidth
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of, used

# An H100 and an H200 copied at 88 % of what their sixteen lanes of PCIe 5 carry (research: stas00, network/README).
_USUAL_SHARE = 0.88
_LOW_SHARE = 0.6
# The all-reduce is measured with a bucket of 25 MiB, too small to fill a fast link (how far it does was never measured
# here), so that only a very small share of the link is worth a word: then the GPUs hardly talk by it at all.
_LEAST_OF_LINK = 0.15


def _value(survey: Survey, *names: str) -> float | None:
    limits = survey.get("limits") or {}
    return next((limits[name]["value"] for name in names if name in limits), None)


def slow_copies(survey: Survey) -> Iterator[Finding]:
    """Copies from pinned memory against the link's standard; said only of one GPU, since one is measured."""
    gpus = used(survey)
    copies = _value(survey, "transfer.to_device.pinned")
    if not gpus or not copies:
        return
    link = gpus[0]["pcie"]
    best = {**link, "best": min(link.get("system_generation") or 9, link.get("most_generation") or 9)}
    standard = bandwidth(best, "best", "lanes")
    if standard and copies < _LOW_SHARE * standard * 1e9:
        yield finding(
            "slow_copies",
            (Severity.WRONG, Basis.MEASURED, Sure.LIKELY),
            f"Copies to the GPU go at {copies / 1e9:.1f} GB/s; its PCIe link carries {standard:.1f}, "
            f"of which {_USUAL_SHARE:.0%} are usual.",
            f"{copies / (_USUAL_SHARE * standard * 1e9):.0%} of the usual speed, whenever data go to the GPU.",
            "Bind the process to the GPU's memory node, and measure again when nothing else runs.",
            "nvidia-smi topo -m",
        )


def pageable(survey: Survey) -> Iterator[Finding]:
    pinned, plain = _value(survey, "transfer.to_device.pinned"), _value(survey, "transfer.to_device.pageable")
    if pinned and plain and pinned > 1.5 * plain:
        yield finding(
            "pin_memory",
            (Severity.NOTE, Basis.MEASURED, Sure.CERTAIN),
            f"From pinned memory the GPU is fed at {pinned / 1e9:.1f} GB/s, from other memory at {plain / 1e9:.1f}.",
            f"Copies take {pinned / plain:.1f} times as long without pin_memory=True in the DataLoader.",
            "Set pin_memory=True where batches go to the GPU.",
            "",
            "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
        )


def slow_all_reduce(survey: Survey) -> Iterator[Finding]:
    """What each GPU sends in an all-reduce, against the links that join it to the others."""
    gpus, rate = gpus_of(survey), _value(survey, "all_reduce.nccl")
    ranks = len((survey["nvidia"] or {}).get("visible") or gpus)  # it was measured among those that this process sees
    if ranks < 2 or not rate:
        return
    sent = rate * 2 * (ranks - 1) / ranks  # in a ring; see nccl-tests' PERFORMANCE.md, "bus bandwidth"
    states = (survey.get("topology") or {}).get("nvlinks") or []
    link = min((state["gb_per_second"] for state in states), default=0.0)
    name = "NVLinks carry"
    if not link:
        worst = [bandwidth(gpu["pcie"], "system_generation", "lanes") or 0.0 for gpu in gpus]
        link, name = min(worst), "PCIe links carry"
    if link and sent < _LEAST_OF_LINK * link * 1e9:
        yield finding(
            "slow_all_reduce",
            (Severity.ADVICE, Basis.MEASURED, Sure.LIKELY),
            f"In an all-reduce each GPU sends {sent / 1e9:.3g} GB/s; its {name} {link:.3g}.",
            f"{sent / (link * 1e9):.0%} of the link, whenever GPUs exchange gradients of 25 MiB.",
            "See by which way NCCL sends: P2P (NVLink or PCIe), shared memory, or the network.",
            "NCCL_DEBUG=INFO torchrun ... 2>&1 | grep -E 'via|NVLS|P2P|SHM'",
            "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md",
        )


RULES = (slow_copies, pageable, slow_all_reduce)
