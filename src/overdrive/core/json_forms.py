"""The forms of what commands write with `--json`, where it is no dataclass: schemas are made from them, and tests hold
what is written to them. Sizes in bytes, times in seconds, rates a second; what is measured in parts is told by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, float]


class ProfileForm(TypedDict):
    """Where the time of a step goes. `parts`: every moment of a step in one of them; `data`: of its first part."""

    overdrive: int
    program: str
    date: str
    device: str
    step_seconds: float
    steps: int
    parts: Parts
    parts_sum: float
    parts_off: float
    data: Parts
    phases: Parts
    python_by_phase: Parts
    gpu_idle_seconds: float | None
    bottleneck: Mapping[str, Any] | None
    operators: Rows
    modules: Rows
    operator_seconds: float
    uncounted: Sequence[str]
    roof: Mapping[str, Any] | None
    roof_missing: str
    reads: Rows
    memory: Mapping[str, Any]
    flame: Mapping[str, Any]
    overhead: Mapping[str, Any]
    left_out: Mapping[str, str]
    loaders_not_split: Sequence[str]
    workers: int
    advice: Rows | None
    machine: Mapping[str, Any]
    versions: Mapping[str, str]


class FoundForm(TypedDict):
    """One thing that is wrong, or may be better. `severity`: wrong, advice or note."""

    rule: str
    severity: str


class DoctorForm(TypedDict):
    """What a machine is and can do. `limits`: measured; `left_out`: what could not be looked at, and why."""

    overdrive: str
    date: str
    machine: Mapping[str, Any]
    software: Mapping[str, Any]
    environment: Mapping[str, str]
    limits: Mapping[str, Any]
    findings: Sequence[FoundForm]
    left_out: Sequence[Mapping[str, str]]


class PoolForm(TypedDict):
    """Collectives between ranks. `measured`: a row for each operation and size."""

    overdrive: str
    date: str
    backend: str
    ranks: Rows
    pairs: Sequence[Any]
    link: Mapping[str, Any] | None
    measured: Rows
    fits: Mapping[str, Any]
    findings: Sequence[FoundForm]
    left_out: Sequence[Mapping[str, str]]


class RequirementsForm(TypedDict):
    """What a program needs, and how long a step would take elsewhere at least."""

    overdrive: str
    date: str
    program: str
    device: str
    threads: int
    step: Mapping[str, float | None]
    memory: Mapping[str, Any]
    threads_seconds: Rows
    gpus: Rows
    launch_seconds: Mapping[str, Any]
    gpu_here: Mapping[str, Any] | None
    notes: Sequence[str]


class SideBySideForm(TypedDict):
    """Two results. `ratio`: of their speed-ups, B to A, with its interval."""

    version: int
    files: Sequence[str]
    verdict: str
    ratio: Parts | None
    numbers: Sequence[Mapping[str, str]]
    techniques: Sequence[Mapping[str, str]]
    differences: Sequence[Mapping[str, str]]
    notes: Sequence[str]


class CardForm(TypedDict):
    """A technique; `techniques --json` without a name writes a list of them."""

    name: str
    family: str
    contract: str
    summary: str
    frameworks: Sequence[str]
    package: str
    knobs: Rows


class PackForm(TypedDict):
    """A folder of finished samples, and the plan that reads them."""

    folder: str
    plan: str
    samples: int
    bytes: int
    data_sets: int


class JobForm(TypedDict):
    """A batch script; `job` and `output` are empty where it was not submitted."""

    version: int
    script: str
    job: str
    output: str


class ResumeForm(TypedDict):
    """A run that was killed and gone on with, beside one that was not. `same`: by what was compared."""

    version: int
    program: str
    verdict: str
    seed: int
    seconds: float
    killed_after: Sequence[float]
    gone_on: int
    begun_anew: int
    same: Mapping[str, bool]
    other_files: Sequence[str]


class ParametersForm(TypedDict):
    """What of a program can be varied, and where it was found."""

    version: int
    program: str
    parameters: Rows
