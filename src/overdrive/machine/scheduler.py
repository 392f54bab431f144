"""The share of a machine that Slurm, PBS, LSF, Kubernetes or a container gave this process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overdrive.machine.reading import ROOT, first_number, known, text

_MIB = 2**20


def scheduler(environment: Mapping[str, str] | None = None, root: Path = ROOT) -> dict[str, Any]:
    """`name` (or nothing), `container`, and what was granted: `cores`, `memory_bytes`, `gpus`, `tasks`, `hosts`."""
    environment = os.environ if environment is None else environment
    found: dict[str, object] = {"container": _container(environment, root)}
    if environment.get("SLURM_JOB_ID"):
        found |= _slurm(environment)
    elif environment.get("PBS_JOBID"):
        found |= {"name": "PBS", "cores": _int(environment, "NCPUS")}
    elif environment.get("LSB_JOBID"):
        found |= {"name": "LSF", "cores": _int(environment, "LSB_DJOB_NUMPROC")}
    elif environment.get("KUBERNETES_SERVICE_HOST"):
        found["name"] = "Kubernetes"
    return dict(known(found))


def seconds_left(environment: Mapping[str, str] | None = None) -> float | None:
    """Until the end of what Slurm has granted, by the job's own time limit; None where that is not told."""
    environment = os.environ if environment is None else environment
    end = _int(environment, "SLURM_JOB_END_TIME")  # seconds since 1970
    return None if end is None else end - time.time()


def _slurm(environment: Mapping[str, str]) -> dict[str, object]:
    """Slurm's grant of one task, where it says (sbatch(1), srun(1), "output environment variables")."""
    per_node, per_cpu = _int(environment, "SLURM_MEM_PER_NODE"), _int(environment, "SLURM_MEM_PER_CPU")
    cores = _int(environment, "SLURM_CPUS_PER_TASK")
    on_node = _int(environment, "SLURM_CPUS_ON_NODE")
    tasks = _int(environment, "SLURM_NTASKS")
    if cores is None and (tasks or 1) == 1:
        cores = on_node
    memory = per_node or (per_cpu * on_node if per_cpu and on_node else None)
    listed = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")
    gpus = len(listed.split(",")) if listed else _int(environment, "SLURM_GPUS_ON_NODE")
    return {
        "name": "Slurm",
        "cores": cores,
        "cores_on_host": on_node,
        "memory_bytes": memory * _MIB if memory else None,
        "gpus": gpus,
        "tasks": tasks,
        "hosts": _int(environment, "SLURM_JOB_NUM_NODES") or _int(environment, "SLURM_NNODES"),
        "within_step": "SLURM_STEP_ID" in environment,
    }


def _container(environment: Mapping[str, str], root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "Docker"
    if (root / "run/.containerenv").exists():
        return "Podman"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "Apptainer"
    groups = text(root / "proc/self/cgroup")
    if re.search(r"kubepods|containerd|docker[-/]|libpod|lxc", groups):
        return "container"
    return None


def _int(environment: Mapping[str, str], name: str) -> int | None:
    return first_number(environment.get(name, ""))
