"""Findings from the limits that were measured, where they were: the machine does less than it should.

The limits lie in `survey["limits"]`: {name: {"value", "unit", "how"}}, as `machine.limits` names them.
"""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.advice.finding import Basis, Finding, Severity, Sure, Survey
from overdrive.advice.gpus import gpus_of
from overdrive.machine.pci import bandwidth

# An H100 and an H200 copied at 88 % of what their sixteen lanes of PCIe 5 carry (research: stas00, network/README).
_USUAL_SHARE = 0.88
_LOW_SHARE = 0.6


def _value(survey: Survey, *names: str) -> float | None:
    limits = survey.get("limits") or {}
    return next((limits[name]["value"] for name in names if name in limits), None)


def slow_copies(survey: Survey) -> Iterator[Finding]:
    """Copies from pinned memory against the link's standard; said only of one GPU, since one is measured."""
    gpus = gpus_of(survey)
    copies = _value(survey, "transfer.to_device.pinned")
    if not gpus or not copies:
        return
    link = gpus[0]["pcie"]
    best = {**link, "best": min(link.get("system_generation") or 9, link.get("most_generation") or 9)}
    standard = bandwidth(best, "best", "lanes")
    if standard and copies < _LOW_SHARE * standard * 1e9:
        yield Finding(
            "slow_copies",
            Severity.WRONG,
            f"Copies to the GPU go at {copies / 1e9:.1f} GB/s; its PCIe link carries {standard:.1f}, "
            f"of which {_USUAL_SHARE:.0%} are usual.",
            f"{copies / (_USUAL_SHARE * standard * 1e9):.0%} of the usual speed, whenever data go to the GPU.",
            Basis.MEASURED,
            "Bind the process to the GPU's memory node, and measure again when nothing else runs.",
            Sure.LIKELY,
            "nvidia-smi topo -m",
        )


def pageable(survey: Survey) -> Iterator[Finding]:
    pinned, plain = _value(survey, "transfer.to_device.pinned"), _value(survey, "transfer.to_device.pageable")
    if pinned and plain and pinned > 1.5 * plain:
        yield Finding(
            "pin_memory",
            Severity.NOTE,
            f"From pinned memory the GPU is fed at {pinned / 1e9:.1f} GB/s, from other memory at {plain / 1e9:.1f}.",
            f"Copies take {pinned / plain:.1f} times as long without pin_memory=True in the DataLoader.",
            Basis.MEASURED,
            "Set pin_memory=True where batches go to the GPU.",
            Sure.CERTAIN,
            "",
            "https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
        )


RULES = (slow_copies, pageable)
