"""What a proof of sameness compared, as data: made where it is judged, kept in a result, shown by the report.

Each field has a default, since a reader trusts no file: None and "" say that a number or a text is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from overdrive.core.bounds import positive, text
from overdrive.core.interval import Interval


@dataclass(frozen=True)
class Invariant:
    """Something that no contract allows to change."""

    what: str = text(60)
    told: str = text(400)
    same: bool = False


@dataclass(frozen=True)
class ExactRecord:
    """What was compared bit for bit."""

    steps: int | None = positive()
    calls: bool = False  # of a model that answers, not steps of training
    parts: tuple[str, ...] = ()
    first_difference: str | None = None


@dataclass(frozen=True)
class TensorError:
    """The error of one tensor, as a multiple of the original's own, and the multiple that it is allowed."""

    tensor: str = text(120)
    kind: str = text(20)
    ratio: float | None = None
    allowed: float | None = positive()


@dataclass(frozen=True)
class StateError:
    """The mean error in the step from one saved state."""

    step: int | None = positive()
    ratio: float | None = None


@dataclass(frozen=True)
class RoundingRecord:
    """What was compared against fp64 (or, where that was not possible, against careful fp32)."""

    states: int | None = positive()
    steps: tuple[int, ...] = ()  # in which these states were saved
    calls: bool = False  # of a model that answers, not steps of training
    reference: str = text(60)
    flag: str | None = field(default=None, metadata={"limit": 200})  # why there is no fp64
    tensors: int | None = positive()
    bits: float | None = None  # that the worst tensor loses
    allowed_bits: float | None = None
    disturbed: bool = False  # against the original with parameters a little off
    ratio: Interval | None = None
    outside: int | None = None  # tensors whose error is more than it is allowed
    worst: tuple[TensorError, ...] = ()
    by_step: tuple[StateError, ...] = ()

    @property
    def in_fp64(self) -> bool:
        """Whether the reference was in fp64."""
        return self.reference in ("", "fp64")


@dataclass(frozen=True)
class PaceRecord:
    """Mean steps until a loss was reached. `reached`: runs of each arm that did."""

    target: float | None = None
    original: float | None = None
    candidate: float | None = None
    reached: tuple[int, ...] = ()
    p: float | None = None


@dataclass(frozen=True)
class BandRecord:
    """Where the mean loss curves lie farthest apart, and how far seeds alone excuse there (`envelope`)."""

    step: int | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    envelope: float | None = None
    p: float | None = None
    left: bool = False  # the difference lies beyond the envelope, with all of its interval


@dataclass(frozen=True)
class QuantityRecord:
    """Something else that runs produce: the mean of the paired differences, and its spread over seeds."""

    name: str = text(120)
    mean: float | None = None
    spread: float | None = positive()
    p: float | None = None


@dataclass(frozen=True)
class ProductsRecord:
    """What else was compared: how many quantities, and those that are farthest off.

    Not compared: `incomparable`, which too few runs have, and `unsteady`, printed numbers that the program itself does
    not repeat.
    """

    count: int | None = positive()
    differences: tuple[QuantityRecord, ...] = ()
    incomparable: int = 0
    unsteady: int = 0


@dataclass(frozen=True)
class SeedsRecord:
    original: tuple[int, ...] = ()
    candidate: tuple[int, ...] = ()


@dataclass(frozen=True)
class StatisticalRecord:
    """What was compared over seeds. Results of runs: None where one had none. See `Registration`, which is kept here
    as it was fixed beforehand, and `Outcome`."""

    metric: str = text(60)
    equivalent: bool | None = None
    runs: tuple[int, ...] = ()  # judged, of either arm
    horizon: int | None = positive()  # steps
    whole: bool = False
    difference: float | None = None
    interval: tuple[float | None, ...] = ()
    margin: float | None = positive()
    margin_rule: str = text(300)
    margin_runs: int | None = positive()
    smallest_margin: float | None = positive()
    strict: float | None = positive()
    spread: float | None = None
    noise: float | None = None
    wider_p: float | None = None
    worse: int = 0
    alpha: float | None = positive()
    looks: tuple[int, ...] = ()
    spent: tuple[float, ...] = ()  # alpha of each look, where they do not share it alike
    not_converged: tuple[int, ...] = ()
    original: tuple[float | None, ...] = ()
    candidate: tuple[float | None, ...] = ()
    seeds: SeedsRecord = field(default_factory=SeedsRecord)
    steps_to_target: PaceRecord | None = None
    band: BandRecord | None = None
    products: ProductsRecord = field(default_factory=ProductsRecord)

    @property
    def span(self) -> tuple[float, float] | None:
        """The interval of the difference, where it is one."""
        low, high = self.interval if len(self.interval) == 2 else (None, None)
        return (low, high) if low is not None and high is not None and -1e30 < low <= high < 1e30 else None


@dataclass(frozen=True)
class AgreementRecord:
    """How far answers agree, of the output that agrees least. Shares: from 0 to 1; see `evidence.agreement`."""

    tensor: str = text(120)
    holds: bool | None = None
    calls: int | None = positive()  # with the same inputs
    samples: int | None = positive()  # in them, of different calls
    other: float | None = None  # share of the samples whose answer is another one ...
    other_at_most: float | None = None  # ... with a confidence of 95 %
    margin: float | None = positive()
    lost: float | None = None  # share of the variance over samples that is the error's
    lost_at_most: float | None = None
    lost_margin: float | None = positive()
    worst: float | None = None  # the sample that is farthest off, in standard deviations over samples

    @property
    def interval(self) -> tuple[float, float] | None:
        """The share of other answers, and what it is at most, where both are told."""
        return None if self.other is None or self.other_at_most is None else (self.other, self.other_at_most)


@dataclass(frozen=True)
class MetricRecord:
    """The number that a program which only calls its model prints or returns, after one whole run of each."""

    name: str = text(60)
    holds: bool | None = None
    original: float | None = None
    candidate: float | None = None  # None: there was none
    margin: float | None = None  # in the metric's unit
    margin_rule: str = text(60)


@dataclass(frozen=True)
class ProofRecord:
    """A proof of sameness. `level`: what was shown; None where nothing was. By level, what was compared."""

    level: str | None = field(default=None, metadata={"limit": 40})
    sentence: str = text(600)
    proxy: bool = True  # over a part of the program
    invariants: tuple[Invariant, ...] = ()
    exact: ExactRecord | None = None
    rounding: RoundingRecord | None = None
    statistical: StatisticalRecord | None = None
    agreement: AgreementRecord | None = None  # of answers, at this level
    metric: MetricRecord | None = None  # where it was asked for, at every level
