"""Findings about AMD's GPUs: whether computing on them is possible at all, and what holds them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overdrive.core.units import several
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import capped, clocked, in_use, named, power_cap, use_of

_GIB = 2**30
_CONTAINER = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"
_GROUPS = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"
_PARTITIONS = "https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/mi300x/overview.html"
_KERNEL = "https://docs.kernel.org/gpu/amdgpu/thermal.html"
_RAS = "https://docs.kernel.org/gpu/amdgpu/ras.html"
_HIDING = "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html"


def amd_of(survey: Survey) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (survey.get("amd") or {}).get("gpus", [])
    return found


def _named(gpus: list[dict[str, Any]], all_of: int) -> str:
    return named(gpus, all_of, "AMD GPU")


def _rocm(survey: Survey) -> bool:
    return bool((survey["software"].get("torch") or {}).get("hip"))


def unusable(survey: Survey) -> Iterator[Finding]:
    """Wrong where PyTorch was built to compute there; a screen's GPU needs none of this."""
    gpus = amd_of(survey)
    if not gpus:
        return
    kfd, render = survey["amd"]["kfd"], survey["amd"]["render"]
    severity = Severity.WRONG if _rocm(survey) else Severity.NOTE
    if "absent" in (kfd, render):
        gone = "/dev/kfd" if kfd == "absent" else "/dev/dri/renderD*"
        yield finding(
            "amd_not_given",
            (severity, Basis.CITED, Sure.CERTAIN),
            f"{several(len(gpus), 'AMD GPU')} in this machine, but {gone} is not there.",
            "ROCm finds no GPU, and programs that ask first train on the CPU.",
            "Give the container both devices; without one, load the driver.",
            "docker run --device=/dev/kfd --device=/dev/dri ..."
            if survey["scheduler"].get("container")
            else "sudo modprobe amdgpu",
            _CONTAINER,
        )
    elif "no" in (kfd, render):
        yield finding(
            "amd_no_permission",
            (severity, Basis.CITED, Sure.CERTAIN),
            f"This user may not use {'/dev/kfd' if kfd == 'no' else '/dev/dri/renderD*'}.",
            "ROCm finds no GPU, and programs that ask first train on the CPU.",
            "Join the groups that may (then log in again); in a container, add --group-add with their numbers.",
            "sudo usermod -a -G render,video $LOGNAME",
            _GROUPS,
        )


def no_kernels(survey: Survey) -> Iterator[Finding]:
    torch = (survey.get("loaded") or {}).get("torch") or {}
    built = {each.partition(":")[0] for each in torch.get("architectures") or [] if each.startswith("gfx")}
    known = [gpu for gpu in amd_of(survey) if gpu.get("architecture")]  # not of those that a container may not use
    odd = [gpu for gpu in known if built and gpu["architecture"] not in built]
    if odd and not survey["environment"].get("HSA_OVERRIDE_GFX_VERSION"):
        yield finding(
            "amd_no_kernels",
            (Severity.WRONG if len(odd) == len(known) else Severity.NOTE, Basis.COMPUTED, Sure.CERTAIN),
            f"PyTorch has no kernels for {_named(odd, len(amd_of(survey)))} ({odd[0]['architecture']}); "
            f"it was built for {' '.join(sorted(built))}.",
            "Every operation on it fails.",
            "Install a build for this GPU; ROCm's list of supported GPUs tells whether there is one.",
            "",
            "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
        )


def unsound(survey: Survey) -> Iterator[Finding]:
    for gpu in amd_of(survey):
        if count := gpu.get("uncorrected_errors"):
            yield finding(
                "amd_fault",
                (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
                f"AMD GPU {gpu['index']} is not sound: {several(count, 'error')} could not be corrected.",
                "Programs on it are ended by the driver, or compute on less memory.",
                "Restart the machine when nothing runs on it; if it comes again, have it replaced.",
                "amd-smi metric --ecc --ecc-blocks",
                _RAS,
            )


def held(survey: Survey) -> Iterator[Finding]:
    gpus = amd_of(survey)
    low = [gpu for gpu in gpus if gpu.get("clocks_held") == "low"]
    if low:
        cost, basis = clocked(low[0])
        yield finding(
            "amd_clocks_held",
            (Severity.WRONG, basis, Sure.CERTAIN),
            f"{_named(low, len(gpus))}: held at the lowest clocks.",
            cost,
            "Let the driver choose.",
            "sudo amd-smi set --perf-level AUTO",
            _KERNEL,
        )
    if less := capped(gpus):
        who = _named(less, len(gpus))
        yield power_cap("amd_power_cap", less, who, "sudo amd-smi set --power-cap", _KERNEL)


def partitions(survey: Survey) -> Iterator[Finding]:
    gpus = amd_of(survey)
    cut = [gpu for gpu in gpus if gpu.get("compute_partition") not in (None, "SPX")]
    if cut:
        modes = "/".join(filter(None, (cut[0]["compute_partition"], cut[0].get("memory_partition"))))
        parts = cut[0].get("partitions") or 1
        yield finding(
            "amd_partitions",
            (Severity.NOTE, Basis.CITED, Sure.CERTAIN),
            f"{_named(cut, len(gpus))}: cut into {several(parts, 'part')} ({modes}), "
            "each a GPU of its own to a program.",
            "A program has one part's share of the cores, unless it asks for several.",
            "For one large job ask for whole GPUs (mode SPX).",
            "",
            _PARTITIONS,
        )


def unjoined(survey: Survey) -> Iterator[Finding]:
    if (survey.get("amd") or {}).get("xgmi") == "some":
        yield finding(
            "amd_xgmi_some",
            (Severity.NOTE, Basis.COMPUTED, Sure.CERTAIN),
            "XGMI joins some pairs of the AMD GPUs only.",
            "A group of GPUs is as fast as its slowest pair.",
            "For jobs on some of the GPUs choose those that are joined.",
            "amd-smi topology",
        )


def taken(survey: Survey) -> Iterator[Finding]:
    """The driver tells no names to other users; a screen takes some hundred megabytes."""
    for gpu in amd_of(survey):
        used, total, busy = use_of(gpu)
        if total >= 4 * _GIB and (busy > 10 or used > 0.1 * total):
            yield in_use("amd_taken", f"AMD GPU {gpu['index']}", "", (used, total, busy), "amd-smi process")


def hidden(survey: Survey) -> Iterator[Finding]:
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        chosen = survey["environment"].get(name)
        if chosen is not None and amd_of(survey) and _rocm(survey) and chosen.strip() in ("", "-1"):
            yield finding(
                "amd_hidden",
                (Severity.WRONG, Basis.CITED, Sure.LIKELY),
                f"{name}={chosen!r} hides all {several(len(amd_of(survey)), 'AMD GPU')}.",
                "Training runs on the CPU.",
                "Take it away, unless the CPU is meant.",
                f"unset {name}",
                _HIDING,
            )


RULES = (unusable, no_kernels, unsound, held, hidden, taken, partitions, unjoined)
