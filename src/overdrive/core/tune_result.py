"""The result of a tune, as data: what `tune --json` writes, the ledger keeps and the report shows.

Written by `core.json_data.to_json`. What comes from a file is read by `report.reading.read`, which trusts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overdrive.core.bounds import positive, text
from overdrive.core.call_sizes import CallSize
from overdrive.core.interval import Interval
from overdrive.core.proof_record import ProofRecord
from overdrive.core.settings import Settings
from overdrive.core.units import unit_of

VERSION = 1  # of the form; a result without it was written before there was one, and has the same


@dataclass(frozen=True)
class Figures:
    """Absolute figures of one side of a duel; None where not known."""

    samples_per_s: float | None = positive()
    seconds_per_step: float | None = positive()
    setup_seconds: float | None = positive()  # before the first step
    end_seconds: float | None = positive()  # that Python takes to end the process
    peak_memory: float | None = positive()  # bytes
    epoch_steps: float | None = positive()  # of an epoch, where what comes between two was measured:
    between_epochs: float | None = positive()  # seconds of evaluations, checkpoints and the like, each time
    # Of a program that trains nothing, seconds that half of its calls are answered in (p50), and 99 of 100 (p99).
    half: Interval | None = None
    most: Interval | None = None


@dataclass(frozen=True)
class SideFigures(Figures):
    """The program before, or under its plan. `shares`: of a step's time, by part; see `Facts.shares`."""

    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OnDevice(Figures):
    device: str = text(40)


@dataclass(frozen=True)
class Scaling:
    """The plan on so many ranks, on the batches of one process; of one rank, that process itself.

    Attributes:
        speedup: over one process (strong scaling).
        efficiency: that, for each of the threads or GPUs of one process.
        communication: the share of a step in which a rank exchanges something or waits for others, in the mean.
        by_doctor: the share that the same exchanges took where `doctor --pool` measured them; `pool` is its file.
        peak_memory: bytes, of the largest rank.
        alone: seconds of a step of one rank with its share of the batch, where no other one is.
        together: of a step of all of them, measured in turn with that.
        weak: the one by the other (weak scaling).
        why_not_weak: why these three were not measured.
    """

    ranks: int | None = positive()
    samples_per_s: float | None = positive()
    seconds_per_step: float | None = positive()
    speedup: Interval | None = None
    efficiency: float | None = positive()
    communication: float | None = None
    by_doctor: float | None = None
    pool: str = text(200)
    peak_memory: float | None = positive()
    alone: float | None = positive()
    together: float | None = positive()
    weak: Interval | None = None
    why_not_weak: str = text(200)


@dataclass(frozen=True)
class Loader:
    """One data loader that the program iterated over; see `LoaderFacts`."""

    batch_size: int | None = positive()
    workers: int | None = positive()
    samples: int | None = positive()
    batch_bytes: int | None = positive()
    seconds_per_item: Mapping[str, float] = field(default_factory=dict)
    not_split: str = text(400)
    draws: bool | None = None


@dataclass(frozen=True)
class Kept:
    """A technique of the plan. `contract`: the level that it keeps here."""

    name: str = text(80)
    settings: Settings = field(default_factory=dict)
    contract: str = text(40)
    verdict: str = text(20)
    speedup: Interval | None = None
    check: str = text(400)


@dataclass(frozen=True)
class NotKept:
    """A technique that is not in the plan, and why.

    `kind`: "measured"; or it was not: "contract" (another one than was asked for), "time" (none was left for it),
    "unfit" (it has no use here). Empty where that was not recorded.
    """

    name: str = text(80)
    settings: Settings = field(default_factory=dict)
    reason: str = text(400)
    kind: str = text(20)
    verdict: str = text(20)
    speedup: Interval | None = None


@dataclass(frozen=True)
class Precision:
    """One number format, as the program has it (`technique` is empty) or as a technique brought it."""

    format: str = text(20)
    technique: str = text(80)
    settings: Settings = field(default_factory=dict)
    told: str = text(400)
    speedup: Interval | None = None
    against: str = text(400)  # the plan that it was added to
    seconds_per_step: float | None = positive()
    peak_memory: float | None = positive()  # bytes
    error: float | None = None  # distance of a gradient from fp64, as a share of its size
    learns: bool | None = None  # the same; None: not checked


@dataclass(frozen=True)
class ShareRecord:
    """What one technique gained, as factors of speed: 1.25 is a quarter faster."""

    name: str = text(80)
    shapley: Interval | None = None  # the values of all techniques multiply to the total
    alone: Interval | None = None  # from the untouched program to the program with only this one
    last: Interval | None = None  # from the plan without it to the plan


@dataclass(frozen=True)
class AttributionRecord:
    """A plan's gain, shared out among its techniques in the order of adoption."""

    method: str = text(100)
    rounds: int | None = positive()
    total: Interval | None = None
    shares: tuple[ShareRecord, ...] = ()
    interaction: Interval | None = None  # total / product of `alone`; below 1 the techniques gain the same thing twice
    dropped: tuple[NotKept, ...] = ()  # adopted first, and without effect in the whole plan


@dataclass(frozen=True)
class PairRecord:
    """One block of each side of a duel, back to back."""

    process: int = 0  # index of the fresh pair of processes that ran it
    steps: int | None = positive()
    seconds_a: float | None = positive()
    seconds_b: float | None = positive()
    a_first: bool = False
    waited: tuple[float, float] | None = None  # share of either block's time in which it waited for a core
    others: tuple[float, float] | None = None  # cores that other programs used meanwhile
    crowded: tuple[float, float] | None = None  # times as long as usual cores took, while all worked


@dataclass(frozen=True)
class DuelRecord:
    name: str = text(80)
    settings: Settings = field(default_factory=dict)
    against: str = text(200)
    verdict: str = text(20)
    speedup: Interval | None = None
    peak_memory: tuple[float | None, ...] = ()  # bytes: of the old side, of the new one
    pairs: tuple[PairRecord, ...] = ()


@dataclass(frozen=True)
class RunGain:
    """The speed-up of a whole run of so many steps, start-up included."""

    steps: int = 0
    speedup: float = 1.0


@dataclass(frozen=True)
class OwnRun:
    """A whole run of this program, whose length is known: its start-up and its steps, as they were measured."""

    steps: int | None = positive()
    before: float | None = positive()  # seconds
    after: float | None = positive()


@dataclass(frozen=True)
class Price:
    """What an hour of the machine costs. `currency`: a sign or a code, as it was given; "" for none."""

    per_hour: float | None = positive()
    currency: str = text(8)


@dataclass(frozen=True)
class Energy:
    """Joules that a step takes, by the machine's own counters. `of`: the parts that they count, whatever ran there."""

    before: float | None = positive()
    after: float | None = positive()
    of: str = text(80)


@dataclass(frozen=True)
class Losses:
    """By step. `seeds`: curves of the untouched program under other seeds."""

    baseline: tuple[float | None, ...] = ()
    tuned: tuple[float | None, ...] = ()
    seeds: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True)
class MachineSummary:
    """The machine in the few words that a report needs. `gpus`: names; None where they were not looked for."""

    cpu: str = text(400)
    cores: int | None = positive()
    memory_bytes: int | None = positive()
    gpus: tuple[str, ...] | None = None
    os: str = text(400)


@dataclass(frozen=True)
class TuneResult:
    """Everything that a tune established, and what a reader must know of how."""

    version: int = VERSION
    program: str = text(100_000)
    contract: str = text(40)  # what was asked for
    objective: str = text(60)
    inference: bool = False  # the program trains nothing: its model's calls are its steps
    call_sizes: tuple[CallSize, ...] = ()  # what these were given, as far as the tune let it run
    verdict: str = text(20)
    speedup: Interval | None = None  # of the whole plan
    unconfirmed: str = text(200)  # what the speed-up rests on where there was no time to confirm it
    beside_others: bool = False  # other programs held the cores in most of what the speed-up rests on
    noise_floor: float | None = None
    baseline: SideFigures | None = None
    tuned: SideFigures | None = None
    devices: tuple[OnDevice, ...] = ()
    scaling: tuple[Scaling, ...] = ()  # where ranks were tried: one process first
    loaders: tuple[Loader, ...] = ()
    tuned_loaders: tuple[Loader, ...] = ()
    techniques: tuple[Kept, ...] = ()
    rejected: tuple[NotKept, ...] = ()
    precision: tuple[Precision, ...] = ()
    check: str = text(400)
    proof: ProofRecord | None = None
    attribution: AttributionRecord | None = None
    tuning_seconds: float | None = positive()
    break_even_steps: int | None = positive()
    whole_run: tuple[RunGain, ...] = ()
    own_run: OwnRun | None = None
    price: Price | None = None
    energy: Energy | None = None  # asked for with the price
    machine: MachineSummary = field(default_factory=MachineSummary)
    versions: Mapping[str, str] = field(default_factory=dict)
    duels: tuple[DuelRecord, ...] = ()
    losses: Losses = field(default_factory=Losses)
    steps_checked: int | None = positive()  # where it is more than the losses that both have
    proxy: bool = True
    plan: str = text(10_000)
    date: str = text(60)
    isolation: str = text(400)
    notes: tuple[str, ...] = ()
    next_step: str = text(1000)  # what to do now, where nothing was established or not all was tried
    notice: str = text(1000)  # what a reader must know of where the numbers come from, before any of them

    @property
    def unit(self) -> str:
        """What a step of the program is called, for people."""
        return unit_of(self.inference)
