"""The proof of sameness in a result: what was compared at each level, and whether it held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.core.contract import Contract
from overdrive.core.proof_record import AgreementRecord, ExactRecord, MetricRecord, RoundingRecord, StatisticalRecord
from overdrive.core.tune_result import TuneResult

_MOST_OF_A_LIST = 400  # characters
LEVELS = {
    Contract.EXACT: "every bit the same",
    Contract.ROUNDING: "as near to fp64 as another order of summation",
    Contract.STATISTICAL: "the same result within the noise of the seed",
}


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
        (
            _exact(found.exact),
            _rounding(found.rounding, shown is Contract.ROUNDING),
            _agreement(found.agreement) if found.agreement else _statistical(found.statistical),
        ),
        (*((each.what, each.told, each.same) for each in found.invariants), *_own_number(found.metric)),
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


def _exact(found: ExactRecord | None) -> Level:
    if found and found.first_difference:
        return Level(Contract.EXACT, False, f"First difference: {found.first_difference}.".replace("..", "."))
    if not found or not found.steps:
        return Level(Contract.EXACT, None, "")
    unit = "calls" if found.calls else "steps"
    return Level(Contract.EXACT, True, f"{listed(found.parts)}: identical at each of {found.steps:,} {unit}.")


def _rounding(found: RoundingRecord | None, shown: bool) -> Level:
    if not found or found.ratio is None or found.outside is None:
        return Level(Contract.ROUNDING, None, "No error could be compared." if found else "")
    tensors = found.tensors or 0
    beyond = f"{found.outside:,} of {tensors:,} tensors are" if found.outside else f"none of {tensors:,} tensors is"
    low, estimate, high = found.ratio.rounded()
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


def _agreement(found: AgreementRecord) -> Level:
    text = f"{found.samples or 0:,} samples in {found.calls or 0:,} calls with the same inputs"
    if found.interval and found.margin is not None:
        other, at_most = (decimal(100 * each) for each in found.interval)
        text += (
            f": {other} % are answered otherwise, at most {at_most} %, margin {decimal(100 * found.margin)} %, fixed "
        )
        text += "beforehand"
    if found.lost is not None:
        text += f"; the error is {decimal(100 * found.lost)} % of the variance over samples"
    if found.worst is not None:
        text += f", of the worst sample {decimal(found.worst)} standard deviations"
    return Level(Contract.STATISTICAL, found.holds, text + ".")


def _own_number(found: MetricRecord | None) -> tuple[tuple[str, str, bool], ...]:
    """As a row beside what no level may change."""
    if found is None or found.original is None or found.margin is None:
        return ()
    its = "no number" if found.candidate is None else decimal(found.candidate)
    rule = f" ({found.margin_rule})" if found.margin_rule else ""
    told = f"{its} instead of {decimal(found.original)}, margin {decimal(found.margin)}{rule}, one run of each"
    return ((f"{found.name or 'its number'} after a whole run", told, found.holds is True),)


def _statistical(found: StatisticalRecord | None) -> Level:
    if not found:
        return Level(Contract.STATISTICAL, None, "")
    metric = found.metric or "result"
    runs = f"of {' + '.join(map(str, found.runs))} runs" if found.runs else "of both"
    over = f"over {found.horizon:,} steps" if found.horizon else "over a part of the program"
    text = f"{metric[:1].upper()}{metric[1:]} {runs} {'of the whole program' if found.whole else over}"
    if found.difference is not None and found.span is not None:
        low, high = (decimal(end, True) for end in found.span)
        text += f": difference {decimal(found.difference, True)} [{low}, {high}]"
    if found.margin is not None:
        text += f", margin ±{decimal(found.margin)}, fixed beforehand"
    if found.smallest_margin is not None:
        text += f"; the smallest that would pass is {decimal(float(f'{found.smallest_margin:.3g}'))}"
    return Level(Contract.STATISTICAL, found.equivalent, text + ".")
