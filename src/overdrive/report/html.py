"""The report as one static HTML file: no script, nothing fetched, every string escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from overdrive.report import charts, terminal
from overdrive.report.terminal import Interval, interval, mapping, mappings, number, positive, sequence, word

PARTS = ("data", "forward", "backward", "optimizer", "other")
_TABLE_ROWS = 24  # of a loss curve: enough to read it off
_FASTEST = 1e6  # a pair beyond this ratio is a broken clock, not a speed-up


@dataclass(frozen=True)
class _Plot:
    """One chart, drawn for a desk and for a phone, with the numbers behind it."""

    wide: Markup
    narrow: Markup
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = field(default_factory=list)


def page(result: Mapping[str, Any]) -> str:
    """The whole page as text, to be written as UTF-8."""
    claim, rest = terminal.headline(result)
    verdict = terminal.verdict(result)
    program = word(result.get("program"), 2000)
    return _template().render(
        program=program,
        title=f"{program or 'Overdrive'}: {claim.lower()}",
        claim=claim,
        rest=rest,
        tight=rest[:1] in (",", ":"),
        verdict=verdict,
        faster=verdict == "FASTER",
        date=word(result.get("date"), 60),
        asked=word(result.get("contract"), 40),
        numbers=terminal.before_after(result),
        sentences=terminal.sentences(result),
        techniques=[_technique(item) for item in mappings(result.get("techniques"))],
        waterfall=_waterfall(result),
        step_time=_step_time(result),
        losses=_losses(result),
        duels=_duels(result),
        rejected=[_rejected(item) for item in mappings(result.get("rejected"))],
        machine=_machine(result),
        command=" ".join(terminal.command(result)),
        plain=program,
    )


@cache
def _template() -> Template:
    source = files("overdrive.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    return environment.from_string(source)


def _times(found: Interval) -> str:
    return str(found).replace("x", "×")


def _technique(item: Mapping[str, Any]) -> dict[str, str]:
    measured = interval(item.get("speedup"))
    return {
        "name": word(item.get("name"), 80) or "(no name)",
        "settings": terminal.settings(item.get("settings")),
        "contract": word(item.get("contract"), 40),
        "speedup": _times(measured) if measured else "not recorded",
        "check": word(item.get("check")) or "No check is recorded.",
    }


def _rejected(item: Mapping[str, Any]) -> dict[str, str]:
    return {
        "name": word(item.get("name"), 80) or "(no name)",
        "settings": terminal.settings(item.get("settings")),
        "reason": terminal.reason(item),
    }


def _waterfall(result: Mapping[str, Any]) -> _Plot | None:
    parts = terminal.contributions(result)
    if not parts:
        return None
    total = interval(result.get("speedup"))
    rows = [charts.Row(name, i.low, i.estimate, i.high, _times(i)) for name, i in parts]
    whole = (
        charts.Row("Confirmed together", total.low, total.estimate, total.high, _times(total), kind="total")
        if total
        else None
    )
    table = [(name, _times(i), f"{math.log(i.estimate):+.3f}") for name, i in parts]
    notes = []
    overlap = terminal.interaction(result)
    if total and overlap:
        table.append(("interaction left over", f"{overlap[0]:.2f}×", f"{math.log(overlap[0]):+.3f}"))
        table.append(("confirmed together", _times(total), f"{math.log(total.estimate):+.3f}"))
        notes.append(overlap[1].replace("x ", "× ").replace("x;", "×;"))
    return _Plot(
        Markup(charts.waterfall(rows, whole)),
        Markup(charts.waterfall(rows, whole, charts.NARROW)),
        ("technique", "speed-up", "ln"),
        table,
        notes,
    )


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


def _step_time(result: Mapping[str, Any]) -> _Plot | None:
    sides = [
        ("Before", _parts(mapping(result.get("baseline")))),
        ("After", _parts(mapping(result.get("tuned")))),
    ]
    bars = [(name, parts) for name, parts in sides if parts]
    if not bars:
        return None
    names = [part for part in (*PARTS, "unaccounted") if any(part in dict(parts) for _, parts in bars)]
    table = [
        (part, *(terminal.duration(dict(parts)[part]) if part in dict(parts) else "–" for _, parts in bars))
        for part in names
    ]
    table.append(("whole step", *(terminal.duration(sum(s for _, s in parts)) for _, parts in bars)))
    return _Plot(
        Markup(charts.step_time(bars)),
        Markup(charts.step_time(bars, charts.NARROW)),
        ("part", *(name.lower() for name, _ in bars)),
        table,
        names,
    )


def _curve(values: object) -> list[float | None]:
    found = [number(value) for value in sequence(values)]
    return [value if value is not None and abs(value) < 1e30 else None for value in found]


def _losses(result: Mapping[str, Any]) -> _Plot | None:
    data = mapping(result.get("losses"))
    before, after = _curve(data.get("baseline")), _curve(data.get("tuned"))
    seeds = [curve for curve in (_curve(item) for item in sequence(data.get("seeds"))) if curve]
    drawn = charts.losses(before, after, seeds) if before or after else ""
    if not drawn:
        return None
    longest = max(len(before), len(after))
    steps = sorted({round(i * (longest - 1) / (_TABLE_ROWS - 1)) for i in range(_TABLE_ROWS)})
    table = []
    for step in steps:
        spread = [curve[step] for curve in seeds if step < len(curve)]
        known = [value for value in spread if value is not None]
        told = f"{min(known):.4g} to {max(known):.4g}" if len(known) > 1 else "–"
        table.append((f"{step + 1:,}", _loss(before, step), _loss(after, step), told))
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
    return _Plot(
        Markup(drawn),
        Markup(charts.losses(before, after, seeds, charts.NARROW)),
        ("step", "before", "after", "seeds"),
        table,
        notes,
    )


def _loss(curve: Sequence[float | None], step: int) -> str:
    value = curve[step] if step < len(curve) else None
    return "–" if value is None else f"{value:.4g}"


def _duels(result: Mapping[str, Any]) -> _Plot | None:
    rows, table = [], []
    for duel in mappings(result.get("duels")):
        name, against = word(duel.get("name"), 80) or "(no name)", word(duel.get("against"), 200)
        said, measured = word(duel.get("verdict"), 20).upper(), interval(duel.get("speedup"))
        dots, first, steps = [], 0, 0.0
        for pair in mappings(duel.get("pairs")):
            a, b = positive(pair.get("seconds_a")), positive(pair.get("seconds_b"))
            if a and b and 1 / _FASTEST < a / b < _FASTEST:
                dots.append((int(number(pair.get("process")) or 0), a / b))
                first += pair.get("a_first") is True
                steps += positive(pair.get("steps")) or 0
        table.append(
            (
                f"{name} against {against}" if against else name,
                said.lower() or "–",
                _times(measured) if measured else "–",
                f"{len(dots)} in {len({process for process, _ in dots})}",
                f"{steps:,.0f}",
                f"{first}",
            )
        )
        if measured:
            kind = {"FASTER": "good", "SLOWER": "bad"}.get(said, "")
            under = f"against {against}" if against else ""
            rows.append(
                charts.Row(
                    name,
                    measured.low,
                    measured.estimate,
                    measured.high,
                    _times(measured),
                    under,
                    tuple(dots),
                    kind,
                )
            )
    if not table:
        return None
    noise = positive(result.get("noise_floor"))
    noise = noise if noise and noise < 10 else None
    return _Plot(
        Markup(charts.duels(rows, noise)),
        Markup(charts.duels(rows, noise, charts.NARROW)),
        ("duel", "verdict", "speed-up", "pairs in processes", "steps", "original first"),
        table,
        ["The grey band is the noise floor."] if noise else [],
    )


def _machine(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of what the numbers were measured on."""
    data, found = mapping(result.get("machine")), []
    if cpu := word(data.get("cpu")):
        found.append(("Processor", cpu))
    if cores := positive(data.get("cores")):
        found.append(("Cores", f"{cores:,.0f}"))
    if memory := positive(data.get("memory_bytes")):
        found.append(("Memory", f"{memory / 2**30:,.1f} GiB"))
    gpus = sequence(data.get("gpus"))
    names = [word(gpu.get("name")) if isinstance(gpu, Mapping) else word(gpu) for gpu in gpus]
    if data:
        found.append(("GPU", ", ".join(name for name in names if name) or "none"))
    for name, version in mapping(result.get("versions")).items():
        found.append((word(name, 60), word(version, 120)))
    return found
