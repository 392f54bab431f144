"""A profile as data: what `profile --json` writes, and what the terminal and the page show. Seconds a step; bytes.

Names are the profiled program's own, so `report.reading.harmless` has them before they are shown: each field has a
default for what is missing or broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overdrive.core.bounds import positive, text
from overdrive.core.tune_result import MachineSummary
from overdrive.core.units import unit_of
from overdrive.insight.profile.bottleneck import Bottleneck
from overdrive.insight.profile.edits import Edit
from overdrive.insight.profile.operators import ModuleRow, OperatorRow, Roof


@dataclass(frozen=True)
class Read:
    """A place where the program asks for a tensor's numbers."""

    file: str = ""
    line: int = 0
    call: str = text(40)
    calls: float = 0.0
    seconds: float = 0.0
    on_gpu: bool = False


@dataclass(frozen=True)
class FlameNode:
    """A node of the flame graph: a phase, a module or an operator, with what is in it, from long to short."""

    name: str = text(120)
    seconds: float = 0.0
    children: tuple[FlameNode, ...] = ()


@dataclass(frozen=True)
class MemoryAt:
    """`at`: the place in the recorded steps, from 0 to 1. `bytes`: by category."""

    at: float = 0.0
    bytes: tuple[float, ...] = ()


@dataclass(frozen=True)
class LargestUse:
    name: str = text(40)
    bytes: float | None = positive()


@dataclass(frozen=True)
class MemoryProfile:
    """By category, at the peak; or what stays between steps and the most that an operation takes, where no more is
    known."""

    categories: tuple[str, ...] = ()
    curve: tuple[MemoryAt, ...] = ()
    peak_at: float | None = None  # as `MemoryAt.at`
    peak: Mapping[str, float] = field(default_factory=dict)
    standing: Mapping[str, float] = field(default_factory=dict)
    most: LargestUse = field(default_factory=LargestUse)


@dataclass(frozen=True)
class Overhead:
    """What measuring itself cost, as shares of a step; and in how many steps, pairs of blocks and processes."""

    timed: float = 0.0
    error: float = 0.0
    recorded: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    pairs: int = 0
    dropped: int = 0
    processes: int = 0


@dataclass(frozen=True)
class ProfiledMachine(MachineSummary):
    threads: int | None = positive()


@dataclass(frozen=True)
class Profile:
    """Where the time of a step goes. `parts`: every moment of a step in one of them; `data`: of its first part.
    `inference`: it trains nothing, and a step is a call of its model."""

    overdrive: int = 1
    program: str = text(2000)
    date: str = text(60)
    device: str = text(40)
    step_seconds: float = 0.0
    steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    parts_sum: float = 0.0
    parts_off: float = 0.0
    data: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    python_by_phase: Mapping[str, float] = field(default_factory=dict)
    gpu_idle_seconds: float | None = positive()
    bottleneck: Bottleneck | None = None
    operators: tuple[OperatorRow, ...] = ()
    modules: tuple[ModuleRow, ...] = ()
    operator_seconds: float = 0.0
    uncounted: tuple[str, ...] = ()  # operators whose operations no formula counts
    roof: Roof | None = None
    roof_missing: str = text(300)
    reads: tuple[Read, ...] = ()
    memory: MemoryProfile = field(default_factory=MemoryProfile)
    flame: FlameNode = field(default_factory=FlameNode)
    overhead: Overhead = field(default_factory=Overhead)
    left_out: Mapping[str, str] = field(default_factory=dict)  # what was not recorded, and why
    loaders_not_split: tuple[str, ...] = ()
    workers: int = 0
    advice: tuple[Edit, ...] | None = None  # None: not asked for, or lines were not recorded
    machine: ProfiledMachine = field(default_factory=ProfiledMachine)
    versions: Mapping[str, str] = field(default_factory=dict)
    inference: bool = False

    @property
    def unit(self) -> str:
        return unit_of(self.inference)
