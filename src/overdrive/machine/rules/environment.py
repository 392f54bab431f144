"""Findings about environment variables: the table of `variables`, and those that depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator

from overdrive.core.units import several
from overdrive.machine.rules.amd import amd_of
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of
from overdrive.machine.rules.software import THREADING
from overdrive.machine.rules.variables import VARIABLES

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def table(survey: Survey) -> Iterator[Finding]:
    gpus = len(gpus_of(survey))
    there = {
        "": True,
        "gpu": gpus > 0 or any(device["use"] == "gpu" for device in survey["pci"]),
        "gpus": gpus > 1,
        "amd": bool(amd_of(survey)),
        "bytecode": bool(survey["software"].get("without_bytecode")),
        "rdma": any(port["state"] == "ACTIVE" for port in survey["network"].get("ports", [])),
    }
    for variable in VARIABLES:
        value = survey["environment"].get(variable.name)
        if value is None or not variable.hurts(value):
            continue
        matters = there[variable.needs]
        yield finding(
            f"environment_{variable.name.strip('_').lower()}",
            (
                variable.severity if matters else Severity.NOTE,
                Basis.CITED if variable.source else Basis.UNKNOWN,
                variable.sure,
            ),
            f"{variable.name}={value[:80]} is set.",
            variable.cost if matters else f"{variable.cost} Here it makes no difference.",
            "Take it away, unless you look for a fault with it.",
            f"unset {variable.name}",
            variable.source,
        )


def threads(survey: Survey) -> Iterator[Finding]:
    granted, environment = survey["cpu"].get("granted_cores"), survey["environment"]
    for name in _THREADS:
        value = environment.get(name, "").partition(",")[0].strip()  # OpenMP takes a list, a number for each level
        if not value.isdigit() or not granted:
            continue
        count = int(value)
        if count > granted:
            yield finding(
                "too_many_threads",
                (Severity.WRONG, Basis.UNKNOWN, Sure.CERTAIN),
                f"{name}={value}, and this process may use {several(granted, 'core')}.",
                "Threads wait for one another at the end of every operation.",
                "Set as many as there are cores.",
                f"export {name}={granted}",
                THREADING,
            )
        elif 0 < count < granted / 2:
            alone = not gpus_of(survey) and count == 1 and granted >= 4 and name == "OMP_NUM_THREADS"
            yield finding(
                "few_threads",
                (Severity.WRONG if alone else Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY if alone else Sure.POSSIBLE),
                f"{name}={value}, and this process may use {granted} cores.",
                f"{'torchrun sets 1 where nobody chose. ' if name == 'OMP_NUM_THREADS' else ''}What is computed on the "
                "CPU leaves the other cores idle, unless other processes use them.",
                "Set the cores divided by the processes; `overdrive tune` tries technique threads.",
                f"export {name}={granted}",
                THREADING,
            )


def hidden(survey: Survey) -> Iterator[Finding]:
    chosen, gpus = survey["environment"].get("CUDA_VISIBLE_DEVICES"), gpus_of(survey)
    if chosen is None or not gpus:
        return
    if chosen.strip() in ("", "-1", "none", "NoDevFiles"):
        yield finding(
            "gpus_hidden",
            (Severity.WRONG, Basis.COMPUTED, Sure.LIKELY),
            f"CUDA_VISIBLE_DEVICES={chosen!r} hides all {several(len(gpus), 'GPU')}.",
            "Training runs on the CPU.",
            "Take it away, unless the CPU is meant.",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif unknown := [each for each in chosen.split(",") if each.strip().isdigit() and int(each) >= len(gpus)]:
        yield finding(
            "gpus_unknown",
            (Severity.WRONG, Basis.CITED, Sure.CERTAIN),
            f"CUDA_VISIBLE_DEVICES={chosen} names GPU {', '.join(unknown)}, and there is {several(len(gpus), 'GPU')}.",
            "CUDA sees only those before the first that it does not know.",
            "Name GPUs that are there.",
            "unset CUDA_VISIBLE_DEVICES",
            "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
        )


def bound(survey: Survey) -> Iterator[Finding]:
    for name, binds in (
        ("OMP_PROC_BIND", ("true", "close", "spread", "master", "primary")),
        ("GOMP_CPU_AFFINITY", ()),
        ("KMP_AFFINITY", ()),
    ):
        value = survey["environment"].get(name, "").strip()
        pinned = value.lower().split(",")[0] in binds if binds else bool(value) and value not in ("none", "disabled")
        if pinned:
            yield finding(
                "bound_threads",
                (Severity.NOTE, Basis.UNKNOWN, Sure.POSSIBLE),
                f"{name}={value[:80]} binds the main thread to one place.",
                "Data workers that are forked from it may all end on the same core.",
                "Try without it where data workers are the bottleneck.",
                f"unset {name}",
            )


def other_libraries(survey: Survey) -> Iterator[Finding]:
    torch = survey["software"].get("torch") or {}
    paths = [path for path in survey["environment"].get("LD_LIBRARY_PATH", "").split(":") if "cuda" in path.lower()]
    if torch.get("cuda") and survey["software"].get("libraries") and paths:
        yield finding(
            "library_path",
            (Severity.NOTE, Basis.UNKNOWN, Sure.POSSIBLE),
            "LD_LIBRARY_PATH names a CUDA of the system, and PyTorch brought libraries of its own.",
            "The system's may be loaded in their stead: other versions than PyTorch was built with.",
            "Take it away for programs that use PyTorch's wheel.",
            "unset LD_LIBRARY_PATH",
        )


RULES = (hidden, threads, table, bound, other_libraries)
