"""Findings about the GPUs themselves: faults, clocks, power, slices, and who else is on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from overdrive.core.units import several
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding, listed

_GIB = 2**30
_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_HEALTH = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"


def gpus_of(survey: Survey) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (survey["nvidia"] or {}).get("gpus", [])
    return found


def used(survey: Survey) -> list[dict[str, Any]]:
    """Those that CUDA_VISIBLE_DEVICES leaves a program."""
    listed, seen = gpus_of(survey), (survey["nvidia"] or {}).get("visible")
    return listed if seen is None else [listed[number] for number, _ in seen]


def named(gpus: list[dict[str, Any]], all_of: int, kind: str = "GPU") -> str:
    """ "GPU 0", "GPUs 0 to 3" or "All 8 GPUs"."""
    if len(gpus) == all_of and all_of > 1:
        return f"All {all_of} {kind}s"
    return f"{kind}{'' if len(gpus) == 1 else 's'} {listed([gpu['index'] for gpu in gpus])}"


def capped(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """GPUs that may draw less power than as made."""
    limited = [gpu for gpu in gpus if gpu.get("power_limit_watts") and gpu.get("default_power_limit_watts")]
    return [gpu for gpu in limited if gpu["power_limit_watts"] < 0.98 * gpu["default_power_limit_watts"]]


def power_cap(rule: str, low: list[dict[str, Any]], who: str, command: str, source: str) -> Finding:
    usual = low[0]["default_power_limit_watts"]
    return finding(
        rule,
        (Severity.WRONG, Basis.UNKNOWN, Sure.CERTAIN),
        f"{who} may draw {low[0]['power_limit_watts']} W; as made, {usual} W.",
        "Under full load the clocks fall until the power fits; how far depends on the program.",
        "Set it back, unless it was lowered for the cooling or the supply.",
        f"{command} {usual}",
        source,
    )


def no_driver(survey: Survey) -> Iterator[Finding]:
    seen = [device for device in survey["pci"] if device["use"] == "gpu" and device["vendor"] == "NVIDIA"]
    if not seen or gpus_of(survey):
        return
    mounted = any(device.get("driver") == "nvidia" for device in seen)
    yield finding(
        "no_driver",
        (Severity.WRONG, Basis.COMPUTED, Sure.LIKELY),
        f"{several(len(seen), 'NVIDIA GPU')} on the PCI bus, but NVIDIA's driver does not answer.",
        "Training runs on the CPU.",
        "The driver is loaded: give the container its GPUs."
        if mounted
        else "Install NVIDIA's driver, and see what the kernel says of it.",
        "docker run --gpus all ..." if mounted else "sudo dmesg | grep -i -E 'nvrm|nvidia'",
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/index.html",
    )


def broken(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    for gpu in gpus:
        faults = []
        if gpu.get("unreachable"):
            faults.append(f"it does not answer ({gpu['unreachable']})")
        if gpu.get("row_remap_failed"):
            faults.append("rows of its memory are broken and cannot be replaced any more")
        elif gpu.get("row_remap_pending"):
            faults.append("broken rows of its memory are replaced only at the next reset")
        if gpu.get("uncorrected_errors"):
            faults.append(f"{several(gpu['uncorrected_errors'], 'memory error')} could not be corrected")
        if gpu.get("recovery"):
            faults.append(f"the driver asks for {gpu['recovery'].lower()}")
        if faults:
            failed = gpu.get("row_remap_failed")
            yield finding(
                "gpu_fault",
                (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
                f"GPU {gpu['index']} is not sound: {'; '.join(faults)}.",
                "Programs on it are ended by the driver, or compute on less memory.",
                "Have it replaced." if failed else "Reset it when nothing runs on it (or start the machine anew).",
                "" if failed else f"sudo nvidia-smi --gpu-reset -i {gpu['index']}",
                _HEALTH,
            )


def fabric(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    waiting = [gpu for gpu in gpus if gpu.get("fabric") not in (None, "Completed", "Not Supported")]
    if waiting:
        yield finding(
            "fabric",
            (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
            f"{named(waiting, len(gpus))}: NVSwitch is not set up (fabric state “{waiting[0]['fabric']}”).",
            "CUDA does not start on these GPUs (error 802), or they talk without NVLink.",
            "Start the fabric manager, of the very version of the driver.",
            "sudo systemctl enable --now nvidia-fabricmanager",
            "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        )


def clocked(gpu: dict[str, Any]) -> tuple[str, Basis]:
    if (now := gpu.get("sm_mhz")) and (most := gpu.get("most_sm_mhz")):
        return f"It runs at {now} of {most} MHz.", Basis.MEASURED
    return "How much is not told.", Basis.UNKNOWN


def slowed(survey: Survey) -> Iterator[Finding]:
    words = {
        "hw_slowdown": "the hardware protects itself",
        "hw_thermal_slowdown": "heat",
        "hw_power_brake_slowdown": "the power supply's brake",
        "sw_thermal_slowdown": "heat",
    }
    for gpu in gpus_of(survey):
        if gpu.get("slowed_by"):
            causes = list(dict.fromkeys(words.get(cause, cause) for cause in gpu["slowed_by"]))
            degrees = gpu.get("temperature_celsius")
            cost, basis = clocked(gpu)
            yield finding(
                "slowed",
                (Severity.WRONG, basis, Sure.CERTAIN),
                f"GPU {gpu['index']} lowers its clocks now: {', '.join(causes)}"
                + (f", at {degrees} °C." if degrees is not None else "."),
                cost,
                "Look at fans, air flow and power cables.",
                f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {gpu['index']}",
                _SMI,
            )


def power(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    if low := capped(gpus):
        chosen = ",".join(str(gpu["index"]) for gpu in low)
        yield power_cap("power_cap", low, named(low, len(gpus)), f"sudo nvidia-smi -i {chosen} -pl", _SMI)


def clocks(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    told = [gpu for gpu in gpus if gpu.get("application_mhz") and gpu.get("default_application_mhz")]
    held = [gpu for gpu in told if gpu["application_mhz"] < gpu["default_application_mhz"]]
    if held:
        yield finding(
            "application_clocks",
            (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
            f"{named(held, len(gpus))} is held at {held[0]['application_mhz']} MHz; as made, "
            f"{held[0]['default_application_mhz']} MHz.",
            f"Up to {1 - held[0]['application_mhz'] / held[0]['default_application_mhz']:.0%} of what it computes.",
            "Set the clocks back.",
            "sudo nvidia-smi -rac && sudo nvidia-smi -rgc",
            _SMI,
        )


def persistence(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    off = [gpu for gpu in gpus if gpu.get("persistence") is False]
    drawing = any(process.get("kind") == "G" for gpu in gpus for process in gpu.get("processes", []))
    if off and not drawing:  # a screen keeps the driver awake
        yield finding(
            "persistence",
            (Severity.ADVICE, Basis.CITED, Sure.CERTAIN),
            f"{named(off, len(gpus))}: the driver forgets the GPU when no program uses it (persistence mode is off).",
            "The next program waits until it is set up anew, and settings such as power limits are lost.",
            "Keep it awake; in a container, on its host.",
            "sudo nvidia-smi -pm 1",
            "https://docs.nvidia.com/deploy/driver-persistence/index.html",
        )


def mig(survey: Survey) -> Iterator[Finding]:
    for gpu in gpus_of(survey):
        if not gpu.get("mig"):
            continue
        slices = gpu.get("slices", [])
        if not slices:
            yield finding(
                "mig_empty",
                (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
                f"GPU {gpu['index']} is to be cut into slices (MIG), but there is none.",
                "No program can use it.",
                "Cut it, or switch MIG off.",
                f"sudo nvidia-smi -i {gpu['index']} -mig 0",
                "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html",
            )
            continue
        sizes = ", ".join(f"{each.get('memory_bytes', 0) / _GIB:.0f} GiB" for each in slices)
        yield finding(
            "mig_slice",
            (Severity.NOTE, Basis.CITED, Sure.CERTAIN),
            f"GPU {gpu['index']} is cut into slices (MIG); seen here: {several(len(slices), 'slice')} of {sizes}.",
            "A program has one slice: its share of the multiprocessors and of the memory's speed, and no other GPU.",
            "Ask for a whole GPU where the program would fill it.",
            "",
            "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/index.html",
        )


def compute_mode(survey: Survey) -> Iterator[Finding]:
    gpus = gpus_of(survey)
    closed = [gpu for gpu in gpus if gpu.get("compute_mode") == "Prohibited"]
    alone = [gpu for gpu in gpus if gpu.get("compute_mode") == "Exclusive_Process"]
    if closed:
        yield finding(
            "compute_prohibited",
            (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
            f"{named(closed, len(gpus))}: computing is forbidden (compute mode Prohibited).",
            "No program can use it.",
            "Allow it.",
            "sudo nvidia-smi -c DEFAULT",
            _SMI,
        )
    if alone:
        yield finding(
            "compute_exclusive",
            (Severity.ADVICE, Basis.COMPUTED, Sure.CERTAIN),
            f"{named(alone, len(gpus))} takes one process at a time (compute mode Exclusive_Process).",
            "`overdrive tune` compares two live programs, and cannot put both on it.",
            "Allow several while tuning.",
            "sudo nvidia-smi -c DEFAULT",
            _SMI,
        )


def use_of(gpu: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes that are taken, of how many; and the share of its time, in percent."""
    return gpu.get("memory_used_bytes") or 0, gpu.get("memory_bytes") or 0, gpu.get("busy_percent") or 0


def in_use(rule: str, which: str, who: str, use: tuple[int, int, int], command: str) -> Finding:
    memory, total, busy = use
    return finding(
        rule,
        (Severity.ADVICE, Basis.MEASURED, Sure.CERTAIN),
        f"{which} is in use by others{who}: {busy} % busy, {memory / _GIB:.1f} of {total / _GIB:.1f} GiB taken.",
        "Training shares it, and what is measured meanwhile is too slow and noisy.",
        "Choose another GPU, or wait.",
        command,
    )


def taken(survey: Survey) -> Iterator[Finding]:
    for gpu in used(survey):
        if gpu.get("mig"):  # what others do is in parts of their own
            continue
        working = [process for process in gpu.get("processes", []) if "C" in process.get("kind", "C")]
        memory, total, busy = use_of(gpu)
        hidden = not working and (busy > 10 or (total and memory > 0.1 * total and not gpu.get("processes")))
        if working or hidden:
            names = dict.fromkeys(process.get("name") or "unnamed" for process in working)
            who = f" ({', '.join(names) or 'nobody to be seen'})"
            yield in_use("gpu_taken", f"GPU {gpu['index']}", who, (memory, total, busy), "nvidia-smi")


def unlike(survey: Survey) -> Iterator[Finding]:
    models = sorted({gpu["name"] for gpu in used(survey) if "name" in gpu})
    if len(models) > 1:
        yield finding(
            "unlike_gpus",
            (Severity.NOTE, Basis.COMPUTED, Sure.CERTAIN),
            f"The GPUs are not alike: {', '.join(models)}.",
            "Data-parallel training goes at the pace of the slowest.",
            "Choose like ones with CUDA_VISIBLE_DEVICES (CUDA numbers the fastest first, nvidia-smi by the bus).",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        )


RULES = (no_driver, broken, fabric, slowed, power, clocks, compute_mode, mig, persistence, taken, unlike)
