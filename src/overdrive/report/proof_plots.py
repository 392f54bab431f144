"""The report's charts of sameness, each with the numbers behind it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from overdrive.report import proof_charts, svg
from overdrive.report.plots import Plot, plot, times
from overdrive.report.proof import MEAN_ALLOWED, decimal, in_fp64, span
from overdrive.report.reading import interval, mapping, mappings, number, positive, sequence, word

_MOST_TENSORS = 6  # drawn; the table has all that are recorded
_LEAST, _MOST = 1e-3, 1e6  # factors drawn: less is no error to speak of, more is off any scale
_NAME = 176  # pixels for a tensor's name


def rounding(result: Mapping[str, Any]) -> Plot | None:
    """The mean error with a dot for every state, and the worst tensors, each with what it is allowed."""
    data = mapping(mapping(result.get("proof")).get("rounding"))
    mean = interval(data.get("ratio"))
    if mean is None:
        return None
    by_step = [(positive(item.get("step")) or 0, number(item.get("ratio"))) for item in mappings(data.get("by_step"))]
    dots = tuple((place % 5, _drawn(ratio)) for place, (_, ratio) in enumerate(by_step) if ratio is not None)
    rows = [
        svg.Row("mean of all tensors", mean.low, mean.estimate, mean.high, times(mean), _states(data), dots, "total")
    ]
    limit = MEAN_ALLOWED if in_fp64(data) else None
    allowed: list[float | None] = [limit]
    table = [("mean of all tensors", "", times(mean), _factor(limit))]
    for item in mappings(data.get("worst")):
        name, kind = word(item.get("tensor"), 120) or "(no name)", word(item.get("kind"), 20)
        ratio, limit = number(item.get("ratio")), positive(item.get("allowed"))
        table.append((name, kind, _factor(ratio), _factor(limit)))
        if ratio is not None and len(rows) <= _MOST_TENSORS:
            at, beyond = _drawn(ratio), limit is not None and ratio > limit
            label = f"{_factor(ratio)} of {limit:,.3g}×" if limit else _factor(ratio)
            short = svg.fit_end(name, _NAME)
            rows.append(svg.Row(short, at, at, at, label, kind, kind="bad" if beyond else "good"))
            allowed.append(_drawn(limit) if limit else None)
    table += [(f"mean at step {step:,.0f}", "", _factor(ratio), "–") for step, ratio in by_step]
    return plot(
        lambda width: proof_charts.errors(rows, allowed, width),
        ("tensor", "kind", "error, × the original’s own", "allowed"),
        table,
        [
            "1× is the original’s own distance from the reference; the short upright lines are what is allowed. "
            "Each small dot is one state of the original’s run."
        ],
    )


def statistical(result: Mapping[str, Any]) -> Plot | None:
    """Both arms of seeds as dots, and their difference with its interval, over the margin."""
    data = mapping(mapping(result.get("proof")).get("statistical"))
    arms = {name: _values(data.get(name)) for name in ("original", "candidate")}
    if not all(arms.values()):
        return None
    centre = statistics.fmean(value for _, value in arms["original"])
    margin = positive(data.get("margin"))
    within = (centre - margin, centre + margin) if margin and margin < 1e30 else None
    rows = [
        _arm(name, arms[key], data.get("not_converged"), place)
        for place, (key, name) in enumerate((("original", "as written"), ("candidate", "under the plan")))
    ]
    difference, ends = number(data.get("difference")), span(data.get("interval"))
    if difference is not None and ends is not None and ends[0] <= difference <= ends[1]:
        said = data.get("equivalent")
        kind = "good" if said is True else "bad" if said is False else ""
        low, high = (decimal(end, True) for end in ends)
        left, at, right = (centre + value for value in (ends[0], difference, ends[1]))
        rows.append(svg.Row("difference", left, at, right, decimal(difference, True), f"{low} to {high}", kind=kind))
    return plot(
        lambda width: proof_charts.arms(rows, within, width),
        ("arm", "seed", word(data.get("metric"), 60) or "result"),
        _runs(data),
        _notes(data, within is not None),
    )


def _states(data: Mapping[str, Any]) -> str:
    states = positive(data.get("states"))
    return f"{states:,.0f} states" if states else ""


def _drawn(ratio: float) -> float:
    return min(max(ratio, _LEAST), _MOST)


def _factor(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:,.0f}×" if abs(ratio) >= 100 else f"{ratio:.2f}×"


def _values(value: object) -> list[tuple[int, float]]:
    """(place, result) of the runs whose result is a number."""
    found = [(place, number(each)) for place, each in enumerate(sequence(value))]
    return [(place, each) for place, each in found if each is not None and abs(each) < 1e30]


def _arm(name: str, values: list[tuple[int, float]], lost: object, place: int) -> svg.Row:
    mean = statistics.fmean(value for _, value in values)
    failed = [number(each) or 0 for each in sequence(lost)]
    under = f"{len(values)} runs"
    if place < len(failed) and failed[place]:
        under += f", {failed[place]:.0f} without a result"
    dots = tuple((run % 5, value) for run, value in values)
    return svg.Row(name, mean, mean, mean, decimal(mean), under, dots)


def _runs(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every run of both arms: arm, seed, result."""
    seeds, table = mapping(data.get("seeds")), []
    for key, name in (("original", "as written"), ("candidate", "under the plan")):
        used = sequence(seeds.get(key))
        for place, value in enumerate(sequence(data.get(key))):
            seed = word(used[place], 40) if place < len(used) else "–"
            known = number(value)
            table.append((name, seed, decimal(known) if known is not None else "not finite"))
    return table


def _notes(data: Mapping[str, Any], band: bool) -> list[str]:
    notes = ["Each dot is one run with a seed of its own; the large mark is the mean."]
    if band:
        notes.append(
            f"The band is the margin around the original’s mean; the whole {_confidence(data)}interval of the "
            "difference must lie in it."
        )
    if rule := word(data.get("margin_rule"), 300):
        notes.append(f"Where the margin comes from: {rule.rstrip('.')}.")
    target = mapping(data.get("steps_to_target"))
    before, after, loss = (number(target.get(key)) for key in ("original", "candidate", "target"))
    if before is not None and after is not None and loss is not None:
        p = number(target.get("p"))
        p_text = f" (p = {p:.2g})" if p is not None else ""
        notes.append(
            f"A loss of {decimal(loss)} is reached after {before:,.0f} steps as written, "
            f"{after:,.0f} under the plan{p_text}."
        )
    curves = mapping(data.get("band"))
    step, apart, excused = (number(curves.get(key)) for key in ("step", "difference", "envelope"))
    if step is not None and apart is not None and excused is not None:
        notes.append(
            f"The mean loss curves lie farthest apart at step {step:,.0f}, by {decimal(abs(apart))}; "
            f"seeds alone excuse {decimal(excused)} there."
        )
    return notes


def _confidence(data: Mapping[str, Any]) -> str:
    """The confidence, such as "90 % ": two one-sided tests at alpha, shared by all looks."""
    alpha, looks = positive(data.get("alpha")), len(sequence(data.get("looks"))) or 1
    return f"{1 - 2 * alpha / looks:.0%} ".replace("%", " %") if alpha and alpha < 0.5 else ""
