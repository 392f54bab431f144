"""The forms of what commands write with `--json`, where it is no dataclass: schemas are made from them, and tests hold
what is written to them. Sizes in bytes, times in seconds, rates a second; what is measured in parts is told by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Rows = Sequence[Mapping[str, Any]]
Parts = Mapping[str, float]


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
    """A run that was killed and gone on with, beside one that was not. `same`: by what was compared.
    `exit_code` and `seconds` are the uninterrupted run's; `reasons`: why it began from its start;
    `not_compared`: what two uninterrupted runs differ in, too; `took`: seconds of a snapshot, a start and a skipped
    step, null where it went on from fewer than two steps."""

    version: int
    program: str
    verdict: str
    seed: int
    seconds: float
    exit_code: int
    killed_after: Sequence[float]
    gone_on: int
    begun_anew: int
    reasons: Sequence[str]
    same: Mapping[str, bool]
    other_files: Sequence[str]
    not_compared: Sequence[str]
    took: Mapping[str, float] | None


class ParametersForm(TypedDict):
    """What of a program can be varied, and where it was found."""

    version: int
    program: str
    parameters: Rows
