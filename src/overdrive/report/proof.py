"""The proof of sameness in a result: what was compared at each level, and whether it held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overdrive.core.contract import Contract
from overdrive.core.interval import Interval
from overdrive.core.tune_result import TuneResult
from overdrive.report.ratio import rounded
from overdrive.report.reading import read

_MOST_OF_A_LIST = 400  # characters
LEVELS = {
    Contract.EXACT: "every bit the same",
    Contract.ROUNDING: "as near to fp64 as another order of summation",
    Contract.STATISTICAL: "the same result within the noise of the seed",
}


def _above_zero() -> Any:
    return field(default=None, metadata={"positive": True})


@dataclass(frozen=True)
class Exact:
    """What was compared bit for bit."""

    steps: int | None = _above_zero()
    calls: bool = False  # of a model that answers, not steps of training
    parts: tuple[str, ...] = ()
    first_difference: str = ""


@dataclass(frozen=True)
class Tensor:
    """The error of one tensor, as a multiple of the original's own, and the multiple that it is allowed."""

    tensor: str = field(default="", metadata={"limit": 120})
    kind: str = field(default="", metadata={"limit": 20})
    ratio: float | None = None
    allowed: float | None = _above_zero()


@dataclass(frozen=True)
class StateError:
    """The mean error in the step from one saved state."""

    step: float | None = _above_zero()
    ratio: float | None = None


@dataclass(frozen=True)
class Rounding:
    """What was compared against fp64 (or, where that was not possible, against careful fp32)."""

    bits: float | None = None  # that the worst tensor loses
    calls: bool = False  # of a model that answers, not steps of training
    disturbed: bool = False  # against the original with parameters a little off
    ratio: Interval | None = None
    outside: float | None = None  # tensors whose error is more than it is allowed
    states: int | None = _above_zero()
    tensors: int | None = _above_zero()
    flag: str = field(default="", metadata={"limit": 200})
    reference: str = field(default="", metadata={"limit": 60})
    worst: tuple[Tensor, ...] = ()
    by_step: tuple[StateError, ...] = ()

    @property
    def in_fp64(self) -> bool:
        """Whether the reference was in fp64."""
        return self.reference in ("", "fp64")


@dataclass(frozen=True)
class StepsToLoss:
    """Steps until a loss was reached."""

    target: float | None = None
    original: float | None = None
    candidate: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Band:
    """Where the mean loss curves lie farthest apart."""

    step: float | None = None
    difference: float | None = None
    envelope: float | None = None


@dataclass(frozen=True)
class Quantity:
    """Something else that runs produce: the mean of the paired differences, and its spread over seeds."""

    name: str = field(default="", metadata={"limit": 120})
    mean: float | None = None
    spread: float | None = _above_zero()
    p: float | None = None


@dataclass(frozen=True)
class Besides:
    """What else was compared: how many quantities, and those that are farthest off."""

    count: int | None = _above_zero()
    differences: tuple[Quantity, ...] = ()


@dataclass(frozen=True)
class Seeds:
    original: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statistical:
    """What was compared over seeds. Results of runs: None where one had none."""

    metric: str = field(default="", metadata={"limit": 60})
    equivalent: bool | None = None
    runs: tuple[int, ...] = ()
    horizon: float | None = _above_zero()  # steps
    whole: bool = False
    difference: float | None = None
    interval: tuple[float, ...] = ()
    margin: float | None = _above_zero()
    margin_rule: str = field(default="", metadata={"limit": 300})
    smallest_margin: float | None = _above_zero()
    alpha: float | None = _above_zero()
    looks: tuple[int, ...] = ()
    spent: tuple[float, ...] = ()  # alpha of each look, where they do not share it alike
    not_converged: tuple[int, ...] = ()
    original: tuple[float | None, ...] = ()
    candidate: tuple[float | None, ...] = ()
    seeds: Seeds = field(default_factory=Seeds)
    steps_to_target: StepsToLoss = field(default_factory=StepsToLoss)
    band: Band = field(default_factory=Band)
    products: Besides = field(default_factory=Besides)

    @property
    def span(self) -> tuple[float, float] | None:
        """The interval of the difference, where it is one."""
        if len(self.interval) != 2 or not -1e30 < self.interval[0] <= self.interval[1] < 1e30:
            return None
        return self.interval[0], self.interval[1]


@dataclass(frozen=True)
class Level:
    """One level: whether it holds (None: not established), and what was compared, in words."""

    level: Contract
    holds: bool | None
    detail: str  # empty where nothing was compared


@dataclass(frozen=True)
class Proof:
    """What a result's proof says. `claimed` is the level that was shown or, where none was, the one asked for."""

    claimed: Contract | None
    shown: bool
    levels: tuple[Level, ...]
    invariants: tuple[tuple[str, str, bool], ...]  # (what, detail, same)
    sentence: str  # without a full stop
    proxy: bool

    @property
    def holds(self) -> bool | None:
        """Whether the claimed level and all invariants hold; None where that was not established."""
        own = next((each.holds for each in self.levels if each.level is self.claimed), None)
        if own is False or not all(same for _, _, same in self.invariants):
            return False
        return True if self.shown else None

    def why(self) -> str:
        """What was found to differ, or was not established, for the end of a sentence."""
        differing = [detail or what for what, detail, same in self.invariants if not same]
        detail = next((each.detail for each in self.levels if each.level is self.claimed), "")
        return "; ".join(differing) or self.sentence or detail.rstrip(".") or "no reason is recorded"


def proof(result: TuneResult) -> Proof | None:
    """The proof in a result, or None where there is none."""
    found = result.proof
    if found is None:
        return None
    try:
        shown: Contract | None = Contract(found.level or "")
    except ValueError:
        shown = None
    return Proof(
        shown or contract(result),
        shown is not None,
        (_exact(found.exact), _rounding(found.rounding, shown is Contract.ROUNDING), _statistical(found.statistical)),
        tuple((each.what, each.told, each.same) for each in found.invariants),
        found.sentence.rstrip("."),
        found.proxy,
    )


def contract(result: TuneResult) -> Contract | None:
    """The loosest contract among what was adopted, or the one asked for; None where that is not known."""
    named = [each.contract for each in result.techniques] or [result.contract]
    try:
        return max((Contract(name) for name in named), key=lambda level: level.rank)
    except ValueError:
        return None


def decimal(value: float, sign: bool = False) -> str:
    """A result or a difference for people, with a true minus."""
    return f"{value:{'+.3g' if sign else '.4g'}}".replace("-", "\N{MINUS SIGN}")


def listed(parts: Sequence[str]) -> str:
    """The parts as the beginning of a sentence."""
    text = ", ".join(parts)
    text = text if len(text) <= _MOST_OF_A_LIST else text[: _MOST_OF_A_LIST - 1] + "…"
    return text[:1].upper() + text[1:] if text else "What was compared"


def _exact(data: Mapping[str, Any] | None) -> Level:
    found = read(Exact, data)
    if found.first_difference:
        return Level(Contract.EXACT, False, f"First difference: {found.first_difference}.".replace("..", "."))
    if not found.steps:
        return Level(Contract.EXACT, None, "")
    unit = "calls" if found.calls else "steps"
    return Level(Contract.EXACT, True, f"{listed(found.parts)}: identical at each of {found.steps:,} {unit}.")


def _rounding(data: Mapping[str, Any] | None, shown: bool) -> Level:
    found = read(Rounding, data)
    if found.ratio is None or found.outside is None:
        return Level(Contract.ROUNDING, None, "No error could be compared." if data else "")
    tensors = found.tensors or 0
    beyond = f"{found.outside:,.0f} of {tensors:,} tensors are" if found.outside else f"none of {tensors:,} tensors is"
    low, estimate, high = rounded(found.ratio)
    against = "fp64" if found.in_fp64 else "careful fp32"
    than = "the original with parameters off by one part in 130,000" if found.disturbed else "the original"
    lost = (
        ""
        if found.bits is None
        else f", the worst tensor is {decimal(round(found.bits, 1))} bits further off than {than}"
    )
    return Level(
        Contract.ROUNDING,
        False if found.outside else True if shown else None,
        f"{f'{found.states or 0:,} calls' if found.calls else f'One step from each of {found.states or 0:,} states'} "
        f"against {against}"
        f"{f' (no fp64: {found.flag})' if found.flag else ''}: the errors are {estimate} [{low}, {high}] times the "
        f"original’s own{lost}, and {beyond} outside what is allowed.",
    )


def _statistical(data: Mapping[str, Any] | None) -> Level:
    if not data:
        return Level(Contract.STATISTICAL, None, "")
    found = read(Statistical, data)
    metric = found.metric or "result"
    runs = f"of {' + '.join(map(str, found.runs))} runs" if found.runs else "of both"
    over = f"over {found.horizon:,.0f} steps" if found.horizon else "over a part of the program"
    text = f"{metric[:1].upper()}{metric[1:]} {runs} {'of the whole program' if found.whole else over}"
    if found.difference is not None and found.span is not None:
        low, high = (decimal(end, True) for end in found.span)
        text += f": difference {decimal(found.difference, True)} [{low}, {high}]"
    if found.margin is not None:
        text += f", margin ±{decimal(found.margin)}, fixed beforehand"
    if found.smallest_margin is not None:
        text += f"; the smallest that would pass is {decimal(float(f'{found.smallest_margin:.3g}'))}"
    return Level(Contract.STATISTICAL, found.equivalent, text + ".")
