"""What `doctor` makes of a machine, and of a pool of ranks: what it prints, and what `--json` writes.

What was surveyed (`machine`, `software`, `environment`; a pool's `ranks`, `pairs` and `link`) stays as the survey has
it, mappings of what each source told: the rules read it so, and what is there differs from machine to machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overdrive.machine.limits import Limits
from overdrive.machine.pool.curve import CurveFit, CurvePoint
from overdrive.machine.rules.finding import Finding, LeftOut, Severity


@dataclass(frozen=True)
class Found:
    """Findings, the worst first, and what could not be looked at."""

    overdrive: str = ""
    date: str = ""
    findings: tuple[Finding, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 where something is wrong, 0 where nothing is, whatever could be better."""
        return int(any(each.severity is Severity.WRONG for each in self.findings))


@dataclass(frozen=True)
class Diagnosis(Found):
    """What a machine is and can do. `limits`: without measures where they could not be measured."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class PoolDiagnosis(Found):
    """Collectives between ranks. `measured`: a point for each operation and size; `fits`: by operation; `busy`: seconds
    of a processor that a second of an exchange takes; `memory`: of ranks that share some, seconds of an exchange by it,
    and bytes a second that each copies."""

    backend: str = ""
    ranks: tuple[Mapping[str, Any], ...] = ()
    pairs: tuple[Mapping[str, Any], ...] = ()
    link: Mapping[str, Any] | None = None
    measured: tuple[CurvePoint, ...] = ()
    fits: Mapping[str, CurveFit] = field(default_factory=dict)
    busy: float = 0.0
    memory: Mapping[str, float] | None = None
