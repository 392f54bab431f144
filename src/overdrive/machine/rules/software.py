"""Findings about the installed builds: whether they fit the hardware, and one another."""

from __future__ import annotations

import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from overdrive.core.installing import pip_install
from overdrive.core.units import listed, several
from overdrive.machine.rules.finding import Basis, Finding, Severity, Sure, Survey, finding
from overdrive.machine.rules.gpus import gpus_of

_START = "https://pytorch.org/get-started/locally/"
_COMPATIBLE = "https://docs.nvidia.com/deploy/cuda-compatibility/"
_BYTECODE = "https://docs.python.org/3/library/compileall.html"
THREADING = "https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html"
_OPENMP = "https://github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md"


def _torch(survey: Survey) -> dict[str, Any] | None:
    found: dict[str, Any] | None = survey["software"].get("torch")
    return found


def _install(version: str, wheels: str) -> str:
    release = version.partition("+")[0]
    return pip_install("--force-reinstall", f"torch=={release}", "--index-url", wheels)


def cpu_build(survey: Survey) -> Iterator[Finding]:
    torch, gpus = _torch(survey), gpus_of(survey)
    amd = [device for device in survey["pci"] if device["use"] == "gpu" and device["vendor"] == "AMD"]
    if torch is None:
        return
    if gpus and not torch["cuda"]:
        newest = _version(survey["nvidia"].get("cuda", ""))
        # Wheels that pytorch.org has for 2.10 and later; those of the older one run on more drivers.
        wheels = "cu130" if newest >= (13,) else "cu126"
        yield finding(
            "torch_cpu_build",
            (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
            f"PyTorch {torch['version']} was built without CUDA, and there is {gpus[0].get('name', 'an NVIDIA GPU')}.",
            "Training runs on the CPU.",
            "Install a build for CUDA (pytorch.org tells which there are).",
            _install(torch["version"], f"https://download.pytorch.org/whl/{wheels}"),
            _START,
        )
    elif not gpus and not torch["hip"] and any(device.get("driver") == "amdgpu" for device in amd):
        yield finding(
            "torch_without_rocm",
            (Severity.ADVICE, Basis.COMPUTED, Sure.POSSIBLE),
            f"{several(len(amd), 'AMD GPU')} on the PCI bus, and PyTorch {torch['version']} was built without ROCm.",
            "Training runs on the CPU, if ROCm runs on this GPU.",
            "Install a build for ROCm.",
            "",
            _START,
        )
    elif torch["cuda"] and not gpus and not any(device["use"] == "gpu" for device in survey["pci"]):
        yield finding(
            "torch_gpu_build",
            (Severity.NOTE, Basis.UNKNOWN, Sure.POSSIBLE),
            f"PyTorch was built for CUDA {torch['cuda']}, and no GPU is to be seen.",
            "Some gigabytes of libraries; speed on the CPU is the same.",
            "If a GPU was expected, see to the driver or the job's request; else a CPU build is smaller.",
            _install(torch["version"], "https://download.pytorch.org/whl/cpu"),
            _START,
        )


def driver(survey: Survey) -> Iterator[Finding]:
    torch, nvidia = _torch(survey), survey["nvidia"] or {}
    if not torch or not torch["cuda"] or not nvidia.get("cuda"):
        return
    needs, runs = _version(torch["cuda"]), _version(nvidia["cuda"])
    if needs and runs and needs[0] > runs[0]:
        yield finding(
            "old_driver",
            (Severity.WRONG, Basis.CITED, Sure.LIKELY),
            f"PyTorch was built for CUDA {torch['cuda']}; driver {nvidia.get('driver')} runs {nvidia['cuda']} at most.",
            "CUDA does not start, and programs that ask first train on the CPU.",
            "Install a newer driver, or a build of PyTorch for an older CUDA.",
            _install(torch["version"], "https://download.pytorch.org/whl/cu126"),
            _COMPATIBLE,
        )


def architectures(survey: Survey) -> Iterator[Finding]:
    built = ((survey.get("loaded") or {}).get("torch") or {}).get("architectures") or []
    for gpu in gpus_of(survey):
        capability = _version(gpu.get("compute_capability", ""))
        if not built or len(capability) != 2 or _runs_on(built, capability):
            continue
        yield finding(
            "no_kernels",
            (Severity.WRONG, Basis.COMPUTED, Sure.CERTAIN),
            f"PyTorch has no kernels for GPU {gpu['index']} ({gpu.get('name')}, {'.'.join(map(str, capability))}); "
            f"it was built for {' '.join(built)}.",
            "Every operation on it fails.",
            "Install a newer PyTorch for a new GPU, an older one for an old GPU.",
            "",
            _START,
        )


def import_fails(name: str, why: str) -> Finding:
    return finding(
        "import_fails",
        (Severity.WRONG, Basis.MEASURED, Sure.CERTAIN),
        f"{name} is installed, but cannot be imported: {why}.",
        "Programs that need it do not start.",
        "Install it anew, in an environment of its own.",
        pip_install("--force-reinstall", "scikit-learn" if name == "sklearn" else name),
    )


def fails(survey: Survey) -> Iterator[Finding]:
    loaded = survey.get("loaded") or {}
    for name, why in loaded.get("failed", {}).items():
        yield import_fails(name, why)
    torch = loaded.get("torch") or {}
    if gpus_of(survey) and torch.get("gpus_seen") == 0 and (_torch(survey) or {}).get("cuda"):
        yield finding(
            "cuda_fails",
            (Severity.WRONG, Basis.MEASURED, Sure.CERTAIN),
            f"PyTorch sees no GPU: {torch.get('no_gpu_because', 'CUDA gives none')}.",
            "Training runs on the CPU, or does not start.",
            "See what the message says; most often the driver is older than the build, or the GPU is hidden.",
            f"{shlex.quote(sys.executable)} -c 'import torch; torch.cuda.init()'",
        )


def debug_build(survey: Survey) -> Iterator[Finding]:
    torch = _torch(survey)
    if torch and torch["debug"]:
        yield finding(
            "debug_build",
            (Severity.WRONG, Basis.UNKNOWN, Sure.CERTAIN),
            f"PyTorch {torch['version']} is a debug build.",
            "Its own code is not optimised.",
            "Install a release.",
            _install(torch["version"], "https://pypi.org/simple"),
        )


def bytecode(survey: Survey) -> Iterator[Finding]:
    without = survey["software"].get("without_bytecode", [])
    if without:
        keeps_from = survey["environment"].get("PYTHONDONTWRITEBYTECODE")
        yield finding(
            "no_bytecode",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.CERTAIN),
            f"There is no bytecode of {listed(without)}: Python compiles their modules at every start.",
            "`import torch, torchvision` took 9.7 s in place of 4.0 on two cores.",
            "Compile them once (a tune's trials share their bytecode by themselves).",
            f"{'env -u PYTHONDONTWRITEBYTECODE ' if keeps_from else ''}{shlex.quote(sys.executable)} -m compileall -q "
            f"{shlex.quote(sysconfig.get_paths()['purelib'])}",
            _BYTECODE,
        )


def openmp(survey: Survey) -> Iterator[Finding]:
    found = (survey.get("loaded") or {}).get("openmp", [])
    kinds = sorted({each["runtime"] for each in found})
    packages = ", ".join(dict.fromkeys(f"{each['runtime']} of {each['of']}" for each in found))
    if {"libiomp5", "libomp"} <= set(kinds):
        yield finding(
            "openmp_mixed",
            (Severity.WRONG, Basis.CITED, Sure.POSSIBLE),
            f"Intel's and LLVM's OpenMP are loaded together: {packages}.",
            "On Linux the two may crash a program, or block it for ever.",
            "Install all packages from one channel (all by pip, or all by conda).",
            "python -m threadpoolctl -i numpy torch",
            _OPENMP,
        )
    elif len(found) > 1:
        yield finding(
            "openmp_twice",
            (Severity.NOTE, Basis.CITED, Sure.POSSIBLE),
            f"OpenMP is loaded more than once: {packages}.",
            "Each has its own threads: where both compute at once, there are more threads than cores.",
            "Nothing, unless both compute at once: then limit one of them with threadpoolctl.",
            "python -m threadpoolctl -i numpy torch sklearn",
            _OPENMP,
        )


def too_many_threads(rule: str, library: str, threads: int, granted: int, command: str, source: str) -> Finding:
    return finding(
        rule,
        (Severity.WRONG, Basis.UNKNOWN, Sure.LIKELY),
        f"{library} starts {threads} threads for an operation, and {several(granted, 'core')} are granted.",
        "Threads wait for one another, and the quota stops all of them in turn.",
        f"{library} does not read a container's quota: set the number of threads.",
        command,
        source,
    )


def threads(survey: Survey) -> Iterator[Finding]:
    torch = (survey.get("loaded") or {}).get("torch") or {}
    granted = survey["cpu"].get("granted_cores")
    chosen = any(survey["environment"].get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if torch.get("threads") and granted and torch["threads"] > granted and not chosen:
        command, source = f"export OMP_NUM_THREADS={granted}", THREADING
        yield too_many_threads("more_threads_than_cores", "PyTorch", torch["threads"], granted, command, source)


def mismatched(survey: Survey) -> Iterator[Finding]:
    found = survey["software"].get("mismatched", [])
    if found:
        listed = ", ".join(f"{each['name']} {each['installed']} (asked: {each['asked']})" for each in found)
        yield finding(
            "mismatched_libraries",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.POSSIBLE),
            f"PyTorch was built with other versions of NVIDIA's libraries: {listed}.",
            "It may fail to load, or choose slower kernels.",
            "Install the versions that it asks for.",
            pip_install(*(f"{each['name']}=={each['asked']}" for each in found)),
        )


def numpy_blas(survey: Survey) -> Iterator[Finding]:
    loaded = survey.get("loaded") or {}
    apple = sys.platform == "darwin"  # Accelerate is no file of its own there
    if "numpy" in loaded.get("imported", []) and not loaded.get("blas") and survey["cpu"].get("vector") and not apple:
        yield finding(
            "numpy_without_blas",
            (Severity.ADVICE, Basis.UNKNOWN, Sure.LIKELY),
            "NumPy was loaded without OpenBLAS, MKL or BLIS.",
            "Products of matrices in NumPy use the slow reference code.",
            "Install NumPy's own wheel.",
            pip_install("--force-reinstall", "--only-binary=:all:", "numpy"),
        )


def _runs_on(built: list[str], capability: tuple[int, ...]) -> bool:
    """Binaries (sm_) run on the same major version from their minor on, PTX (compute_) on all that came later."""
    for each in built:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", each)
        if not found:
            continue
        of = (int(found.group(2)), int(found.group(3)))
        if found.group(4) == "a":
            fits = of == capability
        elif found.group(1) == "compute":
            fits = of <= capability
        else:
            fits = of[0] == capability[0] and of <= capability
        if fits:
            return True
    return False


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


RULES = (cpu_build, driver, architectures, fails, debug_build, bytecode, threads, openmp, mismatched, numpy_blas)
