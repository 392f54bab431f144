"""What hardware a program needs, as data: what `doctor --for --json` writes. Bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCost:
    """A step here, or a call, and what its operators compute and move. `roofline_seconds`: the least by the measured
    roofline."""

    seconds: float
    data_seconds: float
    samples: float
    flops: float
    bytes: float
    operators: int
    roofline_seconds: float | None


@dataclass(frozen=True)
class MemoryNeeds:
    """At the peak, by part. `program`: libraries and data between two steps, on a CPU."""

    parts: Mapping[str, int]
    tensors: int
    program: int | None
    estimated_peak: int
    measured_peak: int
    kept_peak: int | None


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, or of a call. `least` is a bound; that it takes `usual` or less is usual, not certain."""

    least: float
    usual: float
    bound_by: str  # "arithmetic", "memory", "launches" or "data"


@dataclass(frozen=True)
class OnGpu:
    """On a GPU that need not be here, by its data sheet. `half`: in 16 bits."""

    name: str
    memory: float
    needed: float
    fits: bool
    largest_batch: int
    as_it_is: Prediction
    half: Prediction
    source: str


@dataclass(frozen=True)
class OnThreads:
    threads: int
    seconds: float


@dataclass(frozen=True)
class LaunchTime:
    """Of giving a GPU one thing to do; assumed where none is here to be measured."""

    value: float
    measured: bool


@dataclass(frozen=True)
class RankLayout:
    """What each rank holds at the peak under a layout, and how long a step would take.

    Attributes:
        fits: None where its memory was not told.
        said: what its memory hangs on.
        seconds: of a step, foretold; of one process, measured. None: it could not be, and `why`.
        communication: the share of them in which a rank waits for the network or for others.
        told: by rank 0 of such a run, of how it divides the work.
    """

    layout: str
    parts: Mapping[str, int]
    bytes: int
    fits: bool | None
    said: str
    seconds: float | None = None
    communication: float | None = None
    why: str = ""
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class AtSize:
    """A step on so many ranks, in the mean.

    Attributes:
        parts: of its seconds, as `PARTS_AT_SIZE` names them; empty: it could not be foretold, and `why`.
        run: seconds of a whole run with all its failures; None: no run comes to its end, or they were not asked for.
        lost: ranks in a run.
        ends: the share of runs that come to their end.
        told: by rank 0 of such a run, of how it divides the work.
    """

    ranks: int
    parts: Mapping[str, float]
    run: float | None = None
    lost: float = 0.0
    ends: float = 1.0
    why: str = ""
    told: tuple[str, ...] = ()


# What a rank computes of its own share of the work, and beside that; waiting for the slowest, and for the network; what
# snapshots cost, and what is done again for ranks that were lost, spread over all steps.
PARTS_AT_SIZE = ("share", "beside", "slowest", "network", "failures")


@dataclass(frozen=True)
class AtSizes:
    """Ranks in growing numbers, that may be unlike, be slow, or fail.

    Attributes:
        seconds: of a step in one process.
        samples: of a step.
        varied: of how many steps the spread of steps is, and how many times their median the longest took: at the
            smallest size.
        stated: by the user, in words.
    """

    layout: str
    network: str
    seconds: float
    samples: float
    varied: tuple[int, float]
    stated: tuple[str, ...]
    rows: tuple[AtSize, ...]


@dataclass(frozen=True)
class Requirements:
    """What a program needs, and how long a step would take elsewhere at least. `inference`: it trains nothing, and a
    step is a call of its model."""

    overdrive: str
    date: str
    program: str
    device: str
    threads: int
    step: StepCost
    memory: MemoryNeeds
    threads_seconds: tuple[OnThreads, ...]
    gpus: tuple[OnGpu, ...]
    launch_seconds: LaunchTime
    gpu_here: OnGpu | None
    notes: tuple[str, ...]
    layouts: tuple[RankLayout, ...] = ()
    network: str = ""  # between ranks, where steps of layouts are foretold
    inference: bool = False
    sizes: AtSizes | None = None
