"""The report's charts of speed, each with the numbers behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from overdrive.core.call_sizes import first_of
from overdrive.core.facts import ITEM_PARTS
from overdrive.core.interval import Interval
from overdrive.core.tune_result import DuelRecord, SideFigures, TuneResult
from overdrive.core.units import duration
from overdrive.report import charts, figures, svg, techniques

PARTS = ("data", "forward", "backward", "optimizer", "other")
_MOST_LOADERS = 4  # that are drawn
_MOST_SIZES = 16  # of inputs, that are drawn
_TABLE_ROWS = 24  # of a loss curve: enough to read it off
_FASTEST = 1e6  # a pair beyond this ratio is a broken clock, not a speed-up


@dataclass(frozen=True)
class Plot:
    """One chart, drawn for a desk and for a phone, with the numbers behind it."""

    wide: Markup
    narrow: Markup
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    key: Sequence[str] = ()  # the parts that are drawn, in colours of their own


def plot(
    draw: Callable[[int], str],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    key: Sequence[str] = (),
) -> Plot:
    """A chart by a function that draws it at a width, in pixels."""
    return Plot(Markup(draw(svg.WIDE)), Markup(draw(svg.NARROW)), head, rows, notes, key)


def times(found: Interval) -> str:
    return crossed(found.as_speedup())


def waterfall(result: TuneResult) -> Plot | None:
    """What each technique gave, what the parts leave over, and the confirmed total."""
    parts = techniques.contributions(result)
    if not parts:
        return None
    shares = _shares(result)
    rows = [svg.ChartRow(name, i.low, i.estimate, i.high, times(i)) for name, i in parts]
    head = ("technique", "its share", "alone", "added last", "ln") if shares else ("technique", "speed-up", "ln")
    blank = ("–", "–") if shares else ()
    table = [(name, times(i), *shares.get(name, blank), _ln(i.estimate)) for name, i in parts]
    total, rest = result.speedup, techniques.left_over(result)
    whole, notes = None, []
    if total and rest:
        left, said = rest
        rows.append(svg.ChartRow("left over", left, left, left, f"{left:.2f}×", kind="rest"))
        whole = svg.ChartRow("confirmed together", total.low, total.estimate, total.high, times(total), kind="total")
        table.append(("left over", f"{left:.2f}×", *blank, _ln(left)))
        table.append(("confirmed together", times(total), *blank, _ln(total.estimate)))
        notes.append(crossed(said))
    notes += [crossed(note) for note in (techniques.interaction(result), _method(result)) if note]
    return plot(lambda width: charts.waterfall(rows, whole, width), head, table, notes)


def _shares(result: TuneResult) -> dict[str, tuple[str, str]]:
    """Gains by technique: alone, and as the last one added; empty if not measured."""
    return {
        each.name or "(no name)": (
            times(each.alone) if each.alone else "–",
            times(each.last) if each.last else "–",
        )
        for each in techniques.shares(result)
    }


def _method(result: TuneResult) -> str:
    found = result.attribution
    if not techniques.shares(result) or found is None or not found.method:
        return ""
    rounds = f", {found.rounds:,} rounds" if found.rounds else ""
    return f"Shares by {found.method}{rounds}: each technique’s mean gain over the orders of adding it."


def _ln(factor: float) -> str:
    return f"{math.log(factor):+.3f}".replace("-", "\N{MINUS SIGN}")


def crossed(said: str) -> str:
    """The terminal's "1.2x" as "1.2×"."""
    return re.sub(r"(?<=\d)x\b", "×", said)


def _parts(side: SideFigures | None) -> list[tuple[str, float]]:
    """(part, seconds) of one step; what the shares leave over is "unaccounted"."""
    seconds = side.seconds_per_step if side else None
    known = {part: max(0.0, side.shares.get(part, 0.0)) for part in PARTS} if side else {}
    total = sum(known.values())
    if seconds is None or seconds > _FASTEST or not 0 < total < _FASTEST:
        return []
    scale = seconds / max(total, 1.0)
    found = [(part, share * scale) for part, share in known.items() if share]
    if total < 0.99:
        found.append(("unaccounted", (1 - total) * seconds))
    return found


def step_time(result: TuneResult) -> Plot | None:
    sides = [("Before", _parts(result.baseline)), ("After", _parts(result.tuned))]
    bars = [(name, parts) for name, parts in sides if parts]
    if not bars:
        return None
    names = [part for part in (*PARTS, "unaccounted") if any(part in dict(parts) for _, parts in bars)]
    table = [
        (part, *(duration(dict(parts)[part]) if part in dict(parts) else "–" for _, parts in bars)) for part in names
    ]
    step = result.unit
    table.append((f"whole {step}", *(duration(sum(s for _, s in parts)) for _, parts in bars)))
    head = ("part", *(name.lower() for name, _ in bars))
    return plot(lambda width: charts.step_time(bars, step, width), head, table, key=names)


def item_time(result: TuneResult) -> Plot | None:
    """What making one item takes, for each loader, beside what the program waited for it."""
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    table, notes = [], []
    for when, loaders in (("Loader", result.loaders), ("After: loader", result.tuned_loaders)):
        for place, loader in enumerate(loaders[:_MOST_LOADERS], 1):
            size = loader.batch_size
            name = f"{when} {place}, batches of {size:,}" if size else f"{when} {place}"
            parts, waited = figures.item_times(loader)
            known = dict(parts)
            if parts:
                bars.append((name, parts))
            elif when == "Loader" and loader.not_split:
                notes.append(f"Loader {place} is not taken apart: {loader.not_split}.")
            if parts or waited is not None:
                cells = (duration(known[part]) if part in known else "–" for part in ITEM_PARTS)
                text = duration(waited) if waited is not None else "–"
                table.append((name, f"{loader.workers or 0:,}", *cells, text))
    if not bars:
        return None
    head = ("loader", "workers", *ITEM_PARTS, "waited")
    drawn = {part for _, parts in bars for part, _ in parts}
    key = [part for part in ITEM_PARTS if part in drawn]
    return plot(lambda width: charts.item_time(bars, width), head, table, notes, key)


def call_sizes(result: TuneResult) -> Plot | None:
    """What the calls of a program that trains nothing were given; None where all were given the same."""
    table = figures.sizes(result, _MOST_SIZES)
    if not table:
        return None
    rows = first_of(result.call_sizes, _MOST_SIZES)
    return plot(lambda width: charts.counts(rows, "What calls are given", width), figures.SIZES_HEAD, table)


def _curve(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is not None and abs(value) < 1e30 else None for value in values]


def losses(result: TuneResult) -> Plot | None:
    before, after = _curve(result.losses.baseline), _curve(result.losses.tuned)
    seeds = [_curve(each) for each in result.losses.seeds if each]
    if not (before or after) or not charts.losses(before, after, seeds):
        return None
    longest = max(len(before), len(after))
    steps = sorted({round(i * (longest - 1) / (_TABLE_ROWS - 1)) for i in range(_TABLE_ROWS)})
    table = []
    for step in steps:
        spread = [curve[step] for curve in seeds if step < len(curve)]
        known = [value for value in spread if value is not None]
        text = f"{min(known):.4g} to {max(known):.4g}" if len(known) > 1 else "–"
        table.append((f"{step + 1:,}", _loss(before, step), _loss(after, step), text))
    notes = []
    broken = sum(value is None for curve in (before, after) for value in curve)
    if broken:
        notes.append(f"{broken:,} losses are missing or not finite; the curves are interrupted there.")
    if longest > charts.MOST_POINTS:
        notes.append(f"Each point is the mean of {math.ceil(longest / charts.MOST_POINTS)} steps.")
    if before and before == after:
        notes.append("The two curves are one: every loss is the same, bit for bit.")
    if len(seeds) > 1:
        notes.append(f"The band reaches from the lowest to the highest of {len(seeds)} seeds.")
    if result.proxy:
        notes.append(f"{longest:,} steps are a proxy for a whole training, not a proof.")
    head = ("step", "before", "after", "seeds")
    return plot(lambda width: charts.losses(before, after, seeds, width), head, table, notes)


def _loss(curve: Sequence[float | None], step: int) -> str:
    value = curve[step] if step < len(curve) else None
    return "–" if value is None else f"{value:.4g}"


def duels(result: TuneResult) -> Plot | None:
    """Every pair of every duel, and what came of it."""
    drawn = [_duel(each) for each in result.duels]
    if not drawn:
        return None
    rows, table = [row for row, _ in drawn if row], [line for _, line in drawn]
    noise = result.noise_floor if result.noise_floor and 0 < result.noise_floor < 10 else None
    head = ("duel", "verdict", "speed-up", "pairs in processes", f"{result.unit}s", "original first")
    notes = ["The grey band is the noise floor."] if noise else []
    return plot(lambda width: charts.duels(rows, noise, width), head, table, notes)


def _duel(duel: DuelRecord) -> tuple[svg.ChartRow | None, tuple[str, ...]]:
    """One duel as a row of the chart (None if it has no interval) and a line of the table."""
    name, said, measured = duel.name or "(no name)", duel.verdict.upper(), duel.speedup
    dots, first, steps = [], 0, 0
    for pair in duel.pairs:
        if pair.seconds_a and pair.seconds_b and 1 / _FASTEST < pair.seconds_a / pair.seconds_b < _FASTEST:
            dots.append((pair.process, pair.seconds_a / pair.seconds_b))
            first += pair.a_first
            steps += pair.steps or 0
    line = (
        f"{name} against {duel.against}" if duel.against else name,
        said.lower() or "–",
        times(measured) if measured else "–",
        f"{len(dots)} in {len({process for process, _ in dots})}",
        f"{steps:,}",
        f"{first}",
    )
    if measured is None:
        return None, line
    kind = {"FASTER": "good", "SLOWER": "bad"}.get(said, "")
    under = f"against {duel.against}" if duel.against else ""
    low, estimate, high = measured.low, measured.estimate, measured.high
    return svg.ChartRow(name, low, estimate, high, times(measured), under, tuple(dots), kind), line
