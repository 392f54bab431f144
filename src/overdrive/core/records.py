"""What a trial is told before it starts, and how it can end. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.program import Program
from overdrive.worker.session import Chosen


@dataclass(frozen=True)
class ReplayRole:
    """A part in a state replay (see `worker.replay`)."""

    # "reference", "careful reference" (in the program's own precision) or "candidate"; where the steps in fp64 are
    # made by another run (Keras), "targets" or "careful targets"
    role: str
    folder: str  # of the saved states and targets
    steps: tuple[int, ...]  # the chosen ones, from 1


@dataclass(frozen=True)
class TrialSpec:
    """One program under one choice of techniques and one seed (0: the program's own)."""

    program: Program
    techniques: tuple[Chosen, ...] = ()
    seed: int = 0
    digests: str = ""  # kind of digest log to keep (see `worker.digests`), if any
    part: ReplayRole | None = None
    returned: str = ""  # a function of the program whose last returned number is wanted
    deterministic: bool = False  # PyTorch refuses operations that may differ from run to run
    profiling: str = ""  # what blocks are recorded for (see `worker.profiling.recorder`), or "plain": for nothing
    threads: int = 0  # that parallel operations may use; 0: as the program has it

    def name(self) -> str:
        """`plain`, or its techniques with the settings: the same text for the same trial."""
        parts = []
        for name, settings in self.techniques:
            values = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
            parts.append(f"{name}({values})" if values else name)
        return " + ".join(parts) or "plain"


@dataclass(frozen=True)
class ExitReason:
    """Why a trial is over. `kind`: ended, exception, oom, crash, hang, late, unwatched (cannot be followed)."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class TrialOver(Exception):
    """A trial that was to go on is over; caught inside `trials`, never crosses the search."""

    def __init__(self, exit_reason: ExitReason, report: Mapping[str, Any] | None = None) -> None:
        super().__init__(str(exit_reason))
        self.exit_reason = exit_reason
        self.report = report or {}


@dataclass(frozen=True)
class Block:
    """Some whole training steps of one trial, measured in one go."""

    step: int  # the program's step count at the end of the block
    steps: int
    seconds: float
    samples: float
    peak_memory: int = 0  # bytes that the process has used at most so far: of the GPU where it uses one; 0: not known


@dataclass(frozen=True)
class Trace:
    """What a trial did up to a step: all that equivalence is judged by."""

    steps: int = 0
    losses: tuple[tuple[float, ...], ...] = ()  # by step, all that were sent backward
    rates: tuple[float, ...] = ()
    samples: float = 0
    batches: tuple[str, ...] = ()  # checksums of the first steps' batches
    state: str = ""  # hash of parameters, optimizer and random state at the last step
    digests: tuple[Mapping[str, Any], ...] = ()  # by step, where one was ordered (see `worker.digests`)
    replay: Mapping[str, Any] = field(default_factory=dict)  # what a part in a comparison came to
    # Step counts at which it could stand still, where several steps are made in one call; empty: after every step.
    rests: tuple[int, ...] = ()
    trained: str = ""  # how many tensors and scalars are trained
    returned: float | None = None
    active: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Trace:
        return cls(
            steps=int(report["steps"]),
            losses=tuple(tuple(step) for step in report["losses"]),
            rates=tuple(report["rates"]),
            samples=report["samples"],
            batches=tuple(report["batches"]),
            state=report["state"],
            digests=tuple(report.get("digests", ())),
            replay=dict(report.get("replay", {})),
            rests=tuple(report.get("rests", ())),
            trained=report.get("trained", ""),
            returned=report.get("returned"),
            active=tuple(report["active"]),
            left_out=dict(report["left_out"]),
        )
