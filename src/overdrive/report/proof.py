"""Reads the proof of sameness in a result: what was compared at each level, and whether it held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overdrive.core.contract import Contract
from overdrive.report.reading import interval, mapping, mappings, number, positive, sequence, word

# The geometric mean of the errors may be this multiple of the original's own (protocol B4, rounding).
MEAN_ALLOWED = 1.25
LEVELS = {
    Contract.EXACT: "every bit the same",
    Contract.ROUNDING: "errors no larger than the original’s own",
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


def proof(result: Mapping[str, Any]) -> Proof | None:
    """The proof in a result, or None where there is none."""
    data = mapping(result.get("proof"))
    if not data:
        return None
    try:
        shown: Contract | None = Contract(word(data.get("level")))
    except ValueError:
        shown = None
    return Proof(
        shown or contract(result),
        shown is not None,
        (_exact(data), _rounding(data, shown is Contract.ROUNDING), _statistical(data)),
        tuple(
            (word(item.get("what"), 60), word(item.get("told")), item.get("same") is True)
            for item in mappings(data.get("invariants"))
        ),
        word(data.get("sentence"), 600).rstrip("."),
        data.get("proxy") is not False,
    )


def contract(result: Mapping[str, Any]) -> Contract | None:
    """The loosest contract among what was adopted, or the one asked for; None where that is not known."""
    techniques = mappings(result.get("techniques"))
    said = [item.get("contract") for item in techniques] or [result.get("contract")]
    try:
        return max((Contract(word(name)) for name in said), key=lambda level: level.rank)
    except ValueError:
        return None


def decimal(value: float, sign: bool = False) -> str:
    """A result or a difference for people, with a true minus."""
    return f"{value:{'+.3g' if sign else '.4g'}}".replace("-", "\N{MINUS SIGN}")


def span(value: object) -> tuple[float, float] | None:
    """A pair of numbers in order, or None."""
    ends = [number(each) for each in sequence(value)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not -1e30 < ends[0] <= ends[1] < 1e30:
        return None
    return ends[0], ends[1]


def _exact(data: Mapping[str, Any]) -> Level:
    found = mapping(data.get("exact"))
    if not found:
        return Level(Contract.EXACT, None, "")
    steps = int(positive(found.get("steps")) or 0)
    parts = [word(part, 60) for part in sequence(found.get("parts"))]
    if difference := word(found.get("first_difference")):
        return Level(Contract.EXACT, False, f"First difference: {difference}.".replace("..", "."))
    what = word(", ".join(parts)) or "what was compared"
    text = f"{what[:1].upper()}{what[1:]}: identical at each of {steps:,} steps." if steps else ""
    return Level(Contract.EXACT, True if steps else None, text)


def _rounding(data: Mapping[str, Any], shown: bool) -> Level:
    found = mapping(data.get("rounding"))
    ratio, outside = interval(found.get("ratio")), number(found.get("outside"))
    if ratio is None or outside is None:
        return Level(Contract.ROUNDING, None, "" if not found else "No error could be compared.")
    states, tensors = (int(positive(found.get(key)) or 0) for key in ("states", "tensors"))
    beyond = f"{outside:,.0f} of {tensors:,} tensors are" if outside else f"none of {tensors:,} tensors is"
    flag = word(found.get("flag"), 200)
    refused = outside or (in_fp64(found) and ratio.low > MEAN_ALLOWED)
    low, estimate, high = ratio.words()
    return Level(
        Contract.ROUNDING,
        False if refused else True if shown else None,
        f"One step from each of {states:,} states against {'fp64' if in_fp64(found) else 'careful fp32'}"
        f"{f' (no fp64: {flag})' if flag else ''}: the errors are {estimate} [{low}, {high}] times the original’s own, "
        f"and {beyond} outside what is allowed.",
    )


def in_fp64(rounding: Mapping[str, Any]) -> bool:
    """Whether the reference of the rounding level was in fp64; else there is no limit on the mean error."""
    return word(rounding.get("reference"), 60) in ("", "fp64")


def _statistical(data: Mapping[str, Any]) -> Level:
    found = mapping(data.get("statistical"))
    if not found:
        return Level(Contract.STATISTICAL, None, "")
    holds = found.get("equivalent")
    metric, runs = word(found.get("metric"), 80) or "result", [int(number(n) or 0) for n in sequence(found.get("runs"))]
    steps, difference, within = (
        positive(found.get("horizon")),
        number(found.get("difference")),
        span(found.get("interval")),
    )
    parts = [metric[:1].upper() + metric[1:]]
    parts.append(f"of {' + '.join(map(str, runs))} runs" if runs else "of both")
    whole = found.get("whole") is True
    parts.append(
        "of the whole program" if whole else f"over {steps:,.0f} steps" if steps else "over a part of the program"
    )
    said = " ".join(parts)
    if difference is not None and within is not None:
        low, high = (decimal(end, True) for end in within)
        said += f": difference {decimal(difference, True)} [{low}, {high}]"
    if (margin := positive(found.get("margin"))) is not None:
        said += f", margin ±{decimal(margin)}, fixed beforehand"
    if (smallest := positive(found.get("smallest_margin"))) is not None:
        said += f"; the smallest that would pass is {decimal(float(f'{smallest:.3g}'))}"
    return Level(Contract.STATISTICAL, holds if isinstance(holds, bool) else None, said + ".")
