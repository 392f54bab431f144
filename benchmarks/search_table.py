"""What benchmarks/results/search.json holds, as tables for docs/measured.md and docs/measured-history.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

WAYS = ("overdrive", "tpe", "random")
ASKED = 2.0  # times sooner than the defaults, of ours
_NAMED = "sooner"
_WORDS = 3  # of a command line


def again_of(sampler: int) -> str:
    """What the parts of a row end with that came of another seed of the samplers."""
    return f" {sampler}" if sampler > 1 else ""


def table(found: Mapping[str, Any]) -> str:
    """All whole rows, and what of the issue's aims came."""
    rows = {name: row for name, row in found.get("soonest", {}).items() if _NAMED in row}
    head = (
        "| program | soonest to | `overdrive search` | its verdict | TPE by hand | random | fresh seeds | day, load |"
    )
    lines = [head, "|---" * 8 + "|", *(_row(name, row) for name, row in rows.items())]
    if curves := [line for name, row in found.get("curve", {}).items() for line in _curve(name, row)]:
        lines += ["", "| program | batch | foretold | measured | off by | day, load |", "|---" * 6 + "|", *curves]
    return "\n".join([*lines, "", *_said(rows)])


def sooner(row: Mapping[str, Any], way: str) -> list[float]:
    """Times as soon as the defaults, for each seed of the samplers; 0 where its choice never came there."""
    return [float(row[f"{_NAMED}{again_of(sampler)}"][way]) for sampler in _samplers(row)]


def _samplers(row: Mapping[str, Any]) -> list[int]:
    found = [1]
    while f"{_NAMED}{again_of(found[-1] + 1)}" in row:
        found.append(found[-1] + 1)
    return found


def _middle(row: Mapping[str, Any], way: str) -> float:
    return statistics.median(sooner(row, way))


def _row(name: str, row: Mapping[str, Any]) -> str:
    best = max(_middle(row, way) for way in WAYS)
    cells = {way: _cell(row, way, bold=_middle(row, way) == best > 1) for way in WAYS}
    defaults = row["defaults"]
    to = f"{defaults['metric']:.4g}, the defaults' end ({defaults['seconds']:.1f} s)"
    words = [*row["words"][:_WORDS], *(["..."] if len(row["words"]) > _WORDS else [])]
    program = f"{name}, `{' '.join(words)}`"
    ours, verdict = cells["overdrive"], "; ".join(_verdict(row[f"overdrive{again_of(n)}"]) for n in _samplers(row))
    parts = [program, to, ours, verdict, cells["tpe"], cells["random"], str(row["seeds"]), _when(row["when"].values())]
    return f"| {' | '.join(parts)} |"


def _cell(row: Mapping[str, Any], way: str, bold: bool) -> str:
    times = sooner(row, way)
    middle = statistics.median(times)
    text = f"{middle:.2f}×" if middle else "never there"
    text = f"**{text}**" if bold else text
    if len(times) > 1:
        text += f" ({min(times):.2f} to {max(times):.2f}, {len(times)} searches)"
    nothing = sum(not row[f"{way}{again_of(sampler)}"]["chosen"] for sampler in _samplers(row))
    return text + (", nothing found" + (f" in {nothing}" if len(times) > 1 else "") if nothing else "")


def _verdict(ours: Mapping[str, Any]) -> str:
    gain = ours["gain"] or {}
    if gain.get("estimate") is None:
        return str(ours["verdict"])
    interval = f"{gain['estimate']:.2f} s sooner [{gain['low']:.2f}, {gain['high']:.2f}] on {ours['pairs']} pairs"
    return f"{ours['verdict']}: {interval}"


def _when(told: Any) -> str:
    """`11-29, 0.7 to 1.9`, of lines such as `2026-11-29 13:56, load 0.7`."""
    days = sorted({each[5:10] for each in told})
    loads = sorted(float(each.partition("load ")[2]) for each in told)
    return f"{' and '.join(days)}, {loads[0]:g} to {loads[-1]:g}"


def _curve(name: str, row: Mapping[str, Any]) -> list[str]:
    when = _when(row["when"].values())
    lines = []
    for batch, each in row.get("rows", {}).items():
        figures = f"{each['foretold']:.2f} | {_number(each['measured'])} | {_percent(each['error'])}"
        lines.append(f"| {name} | {batch} | {figures} | {when} |")
    return lines


def _number(value: float | None) -> str:
    return "never there" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.0%}"


def _said(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Of these rows, what the issue asks for."""
    if not rows:
        return ["No row is whole."]
    ours = {name: _middle(row, "overdrive") for name, row in rows.items()}
    twice = sum(times >= ASKED for times in ours.values())
    as_good = {
        way: [name for name, row in rows.items() if ours[name] >= _middle(row, way)] for way in ("tpe", "random")
    }
    both = [name for name in rows if all(name in names for names in as_good.values())]
    good = f"TPE by hand in {len(as_good['tpe'])}, as random search in {len(as_good['random'])}, as both in {len(both)}"
    return [
        f"Of the {len(rows)} programs searched, {ASKED:g} times as soon as the defaults in {twice} (asked: 3 of 5); at "
        f"least as good as {good} (asked: 4 of 5)."
    ]
