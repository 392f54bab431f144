"""The report's charts of speed, each with the numbers behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from overdrive.report import charts, svg, words
from overdrive.report.reading import Interval, interval, mapping, mappings, number, positive, sequence, word

PARTS = ("data", "forward", "backward", "optimizer", "other")
_MOST_LOADERS = 4  # that are drawn
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


def plot(
    draw: Callable[[int], str], head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> Plot:
    """A chart by a function that draws it at a width, in pixels."""
    return Plot(Markup(draw(svg.WIDE)), Markup(draw(svg.NARROW)), head, rows, notes)


def times(found: Interval) -> str:
    return _cross(str(found))


def waterfall(result: Mapping[str, Any]) -> Plot | None:
    """What each technique gave, what the parts leave over, and the confirmed total."""
    parts = words.contributions(result)
    if not parts:
        return None
    shares = _shares(result)
    rows = [svg.Row(name, i.low, i.estimate, i.high, times(i)) for name, i in parts]
    head = ("technique", "its share", "alone", "added last", "ln") if shares else ("technique", "speed-up", "ln")
    blank = ("–", "–") if shares else ()
    table = [(name, times(i), *shares.get(name, blank), _ln(i.estimate)) for name, i in parts]
    total, rest = interval(result.get("speedup")), words.left_over(result)
    whole, notes = None, []
    if total and rest:
        ratio, said = rest
        rows.append(svg.Row("left over", ratio, ratio, ratio, f"{ratio:.2f}×", kind="rest"))
        whole = svg.Row("confirmed together", total.low, total.estimate, total.high, times(total), kind="total")
        table.append(("left over", f"{ratio:.2f}×", *blank, _ln(ratio)))
        table.append(("confirmed together", times(total), *blank, _ln(total.estimate)))
        notes.append(_cross(said))
    notes += [_cross(note) for note in (words.interaction(result), _method(result)) if note]
    return plot(lambda width: charts.waterfall(rows, whole, width), head, table, notes)


def _shares(result: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Gains by technique: alone, and as the last one added; empty if not measured."""
    found = {}
    for item in words.shares(result):
        alone, last = interval(item.get("alone")), interval(item.get("last"))
        found[word(item.get("name"), 80) or "(no name)"] = (
            times(alone) if alone else "–",
            times(last) if last else "–",
        )
    return found


def _method(result: Mapping[str, Any]) -> str:
    data = mapping(result.get("attribution"))
    method, rounds = word(data.get("method"), 100), positive(data.get("rounds"))
    if not words.shares(result) or not method or not rounds:
        return ""
    return f"Shares by {method}, {rounds:,.0f} rounds: each technique’s mean gain over the orders of adding it."


def _ln(factor: float) -> str:
    return f"{math.log(factor):+.3f}".replace("-", "\N{MINUS SIGN}")


def _cross(said: str) -> str:
    """The terminal's "1.2x" as "1.2×"."""
    return re.sub(r"(?<=\d)x\b", "×", said)


def _parts(side: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(part, seconds) of one step; what the shares leave over is "unaccounted"."""
    seconds, shares = positive(side.get("seconds_per_step")), mapping(side.get("shares"))
    known = {part: positive(shares.get(part)) or 0.0 for part in PARTS}
    total = sum(known.values())
    if seconds is None or seconds > _FASTEST or not 0 < total < _FASTEST:
        return []
    scale = seconds / max(total, 1.0)
    found = [(part, share * scale) for part, share in known.items() if share]
    if total < 0.99:
        found.append(("unaccounted", (1 - total) * seconds))
    return found


def step_time(result: Mapping[str, Any]) -> Plot | None:
    sides = [
        ("Before", _parts(mapping(result.get("baseline")))),
        ("After", _parts(mapping(result.get("tuned")))),
    ]
    bars = [(name, parts) for name, parts in sides if parts]
    if not bars:
        return None
    names = [part for part in (*PARTS, "unaccounted") if any(part in dict(parts) for _, parts in bars)]
    table = [
        (part, *(words.duration(dict(parts)[part]) if part in dict(parts) else "–" for _, parts in bars))
        for part in names
    ]
    table.append(("whole step", *(words.duration(sum(s for _, s in parts)) for _, parts in bars)))
    head = ("part", *(name.lower() for name, _ in bars))
    return plot(lambda width: charts.step_time(bars, width), head, table, names)


def item_time(result: Mapping[str, Any]) -> Plot | None:
    """What making one item takes, for each loader, beside what the program waited for it."""
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    table, notes = [], []
    for when, key in (("Loader", "loaders"), ("After: loader", "tuned_loaders")):
        for place, loader in enumerate(mappings(result.get(key))[:_MOST_LOADERS], 1):
            size, workers = positive(loader.get("batch_size")), positive(loader.get("workers"))
            name = f"{when} {place}, batches of {size:,.0f}" if size else f"{when} {place}"
            parts, waited = words.item_times(loader)
            known = dict(parts)
            if parts:
                bars.append((name, parts))
            elif key == "loaders" and (why := word(loader.get("not_split"))):
                notes.append(f"Loader {place} is not taken apart: {why}.")
            if parts or waited is not None:
                cells = (words.duration(known[part]) if part in known else "–" for part in words.ITEM_PARTS)
                text = words.duration(waited) if waited is not None else "–"
                table.append((name, f"{workers or 0:,.0f}", *cells, text))
    if not bars:
        return None
    head = ("loader", "workers", *words.ITEM_PARTS, "waited")
    return plot(lambda width: charts.item_time(bars, width), head, table, notes)


def _curve(values: object) -> list[float | None]:
    found = [number(value) for value in sequence(values)]
    return [value if value is not None and abs(value) < 1e30 else None for value in found]


def losses(result: Mapping[str, Any]) -> Plot | None:
    data = mapping(result.get("losses"))
    before, after = _curve(data.get("baseline")), _curve(data.get("tuned"))
    seeds = [curve for curve in (_curve(item) for item in sequence(data.get("seeds"))) if curve]
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
    if result.get("proxy") is not False:
        notes.append(f"{longest:,} steps are a proxy for a whole training, not a proof.")
    head = ("step", "before", "after", "seeds")
    return plot(lambda width: charts.losses(before, after, seeds, width), head, table, notes)


def _loss(curve: Sequence[float | None], step: int) -> str:
    value = curve[step] if step < len(curve) else None
    return "–" if value is None else f"{value:.4g}"


def duels(result: Mapping[str, Any]) -> Plot | None:
    """Every pair of every duel, and what came of it."""
    drawn = [_duel(item) for item in mappings(result.get("duels"))]
    if not drawn:
        return None
    rows, table = [row for row, _ in drawn if row], [line for _, line in drawn]
    noise = positive(result.get("noise_floor"))
    noise = noise if noise and noise < 10 else None
    head = ("duel", "verdict", "speed-up", "pairs in processes", "steps", "original first")
    notes = ["The grey band is the noise floor."] if noise else []
    return plot(lambda width: charts.duels(rows, noise, width), head, table, notes)


def _duel(item: Mapping[str, Any]) -> tuple[svg.Row | None, tuple[str, ...]]:
    """One duel as a row of the chart (None if it has no interval) and a line of the table."""
    name, against = word(item.get("name"), 80) or "(no name)", word(item.get("against"), 200)
    said, measured = word(item.get("verdict"), 20).upper(), interval(item.get("speedup"))
    dots, first, steps = [], 0, 0.0
    for pair in mappings(item.get("pairs")):
        a, b = positive(pair.get("seconds_a")), positive(pair.get("seconds_b"))
        if a and b and 1 / _FASTEST < a / b < _FASTEST:
            dots.append((int(number(pair.get("process")) or 0), a / b))
            first += pair.get("a_first") is True
            steps += positive(pair.get("steps")) or 0
    line = (
        f"{name} against {against}" if against else name,
        said.lower() or "–",
        times(measured) if measured else "–",
        f"{len(dots)} in {len({process for process, _ in dots})}",
        f"{steps:,.0f}",
        f"{first}",
    )
    if measured is None:
        return None, line
    kind = {"FASTER": "good", "SLOWER": "bad"}.get(said, "")
    under = f"against {against}" if against else ""
    low, estimate, high = measured.low, measured.estimate, measured.high
    return svg.Row(name, low, estimate, high, times(measured), under, tuple(dots), kind), line
