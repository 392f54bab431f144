"""The report's charts of sameness, each with the numbers behind it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from overdrive.core.proof_record import ProductsRecord, StatisticalRecord
from overdrive.core.tune_result import TuneResult
from overdrive.core.units import unit_of
from overdrive.report import proof_charts, svg
from overdrive.report.plots import Plot, plot, times
from overdrive.report.proof import decimal

_MOST_TENSORS = 6  # drawn; the table has all that are recorded
_LEAST, _MOST = 1e-3, 1e6  # factors drawn: less is no error to speak of, more is off any scale
_NAME = 176  # pixels for a tensor's name


def rounding(result: TuneResult) -> Plot | None:
    """The mean error with a dot for every state, and the worst tensors, each with what it is allowed."""
    found = result.proof.rounding if result.proof else None
    if found is None or found.ratio is None:
        return None
    mean = found.ratio
    ratios = [each.ratio for each in found.by_step]
    dots = tuple((place % 5, _drawn(ratio)) for place, ratio in enumerate(ratios) if ratio is not None)
    states = f"{found.states:,} states" if found.states else ""
    rows = [svg.ChartRow("mean of all tensors", mean.low, mean.estimate, mean.high, times(mean), states, dots, "total")]
    allowed: list[float | None] = [None]
    table = [("mean of all tensors", "", times(mean), _factor(None))]
    for each in found.worst:
        name, kind, ratio, limit = each.tensor or "(no name)", each.kind, each.ratio, each.allowed
        table.append((name, kind, _factor(ratio), _factor(limit)))
        if ratio is not None and len(rows) <= _MOST_TENSORS:
            at, beyond = _drawn(ratio), limit is not None and ratio > limit
            label = f"{_factor(ratio)} of {limit:,.3g}×" if limit else _factor(ratio)
            short = svg.fit_end(name, _NAME)
            rows.append(svg.ChartRow(short, at, at, at, label, kind, kind="bad" if beyond else "good"))
            allowed.append(_drawn(limit) if limit else None)
    unit = unit_of(found.calls)
    table += [(f"mean at {unit} {each.step or 0:,}", "", _factor(each.ratio), "–") for each in found.by_step]
    return plot(
        lambda width: proof_charts.errors(rows, allowed, width),
        ("tensor", "kind", "error, × the original’s own", "allowed"),
        table,
        [
            "1× is the original’s own distance from the reference; the short upright lines are what is allowed. "
            "Each small dot is one state of the original’s run."
        ],
    )


def statistical(result: TuneResult) -> Plot | None:
    """Both arms of seeds as dots, and their difference with its interval, over the margin."""
    found = result.proof.statistical if result.proof else None
    if found is None:
        return None
    original, candidate = _values(found.original), _values(found.candidate)
    if not original or not candidate:
        return None
    centre = statistics.fmean(value for _, value in original)
    within = (centre - found.margin, centre + found.margin) if found.margin and found.margin < 1e30 else None
    lost = (*found.not_converged, 0, 0)
    rows = [_arm("as written", original, lost[0]), _arm("under the plan", candidate, lost[1])]
    difference, ends = found.difference, found.span
    if difference is not None and ends is not None and ends[0] <= difference <= ends[1]:
        kind = {True: "good", False: "bad", None: ""}[found.equivalent]
        low, high = (decimal(end, True) for end in ends)
        left, at, right = (centre + value for value in (ends[0], difference, ends[1]))
        rows.append(
            svg.ChartRow("difference", left, at, right, decimal(difference, True), f"{low} to {high}", kind=kind)
        )
    return plot(
        lambda width: proof_charts.arms(rows, within, width),
        ("arm", "seed", found.metric or "result"),
        [
            *_runs("as written", found.original, found.seeds.original),
            *_runs("under the plan", found.candidate, found.seeds.candidate),
        ],
        _notes(found, within is not None),
    )


def _drawn(ratio: float) -> float:
    return min(max(ratio, _LEAST), _MOST)


def _factor(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:,.0f}×" if abs(ratio) >= 100 else f"{ratio:.2f}×"


def _values(results: Sequence[float | None]) -> list[tuple[int, float]]:
    """(place, result) of the runs that have one."""
    return [(place, each) for place, each in enumerate(results) if each is not None and abs(each) < 1e30]


def _arm(name: str, values: list[tuple[int, float]], failed: int) -> svg.ChartRow:
    mean = statistics.fmean(value for _, value in values)
    under = f"{len(values)} runs" + (f", {failed} without a result" if failed else "")
    dots = tuple((run % 5, value) for run, value in values)
    return svg.ChartRow(name, mean, mean, mean, decimal(mean), under, dots)


def _runs(name: str, results: Sequence[float | None], seeds: Sequence[int]) -> list[tuple[str, str, str]]:
    """Every run of an arm: arm, seed, result."""
    named = [*map(str, seeds), *["–"] * len(results)]
    return [
        (name, seed, decimal(each) if each is not None else "not finite")
        for seed, each in zip(named, results, strict=False)
    ]


def _notes(found: StatisticalRecord, band: bool) -> list[str]:
    notes = ["Each dot is one run with a seed of its own; the large mark is the mean."]
    if band:
        notes.append(
            f"The band is the margin around the original’s mean; the whole {_confidence(found)}interval of the "
            "difference must lie in it."
        )
    if found.margin_rule:
        notes.append(f"Where the margin comes from: {found.margin_rule.rstrip('.')}.")
    pace = found.steps_to_target
    if pace and pace.original is not None and pace.candidate is not None and pace.target is not None:
        p_text = f" (p = {pace.p:.2g})" if pace.p is not None else ""
        notes.append(
            f"A loss of {decimal(pace.target)} is reached after {pace.original:,.0f} steps as written, "
            f"{pace.candidate:,.0f} under the plan{p_text}."
        )
    if found.products.count:
        notes.append(_besides(found.products))
    apart = found.band
    if apart and apart.step is not None and apart.difference is not None and apart.envelope is not None:
        notes.append(
            f"The mean loss curves lie farthest apart at step {apart.step:,}, by {decimal(abs(apart.difference))}; "
            f"seeds alone excuse {decimal(apart.envelope)} there."
        )
    return notes


def _besides(found: ProductsRecord) -> str:
    told = f"Besides, {found.count} other results were compared: outputs of evaluations, printed numbers, weights"
    if found.incomparable or found.unsteady:
        told += f" ({found.incomparable} more were in too few runs, and {found.unsteady} the program does not repeat)"
    far = next((each for each in found.differences if each.mean is not None and each.spread), None)
    if far is None or far.mean is None or far.spread is None:
        return f"{told}."
    p_text = f" (p = {far.p:.2g})" if far.p is not None else ""
    return f"{told}; {far.name} is {abs(far.mean) / far.spread:.2g} standard deviations over seeds off{p_text}."


def _confidence(found: StatisticalRecord) -> str:
    """The confidence, such as "90 % ": two one-sided tests at alpha, shared by all looks or spent as they say."""
    if not found.alpha or found.alpha >= 0.5:
        return ""
    alpha = found.alpha / (len(found.looks) or 1)
    if found.runs and len(found.spent) == len(found.looks) > 0:
        alpha = found.spent[max(0, sum(look <= min(found.runs) for look in found.looks) - 1)]
    return f"{1 - 2 * alpha:.0%} ".replace("%", " %") if 0 < alpha < 0.5 else ""
