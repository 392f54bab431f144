"""Draws what was measured, for the README: docs/images/results-light.svg and -dark.svg, from benchmarks/results/.

python benchmarks/chart.py   after a measurement was repeated; tests/test_readme.py holds the drawings to the results
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overdrive.core.interval import Interval
from overdrive.report.svg import ChartFrame, ChartRow, drawing, line, rect, text

ROOT = Path(__file__).parents[1]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
WIDTH, TOP = 720, 40

COLOURS = {
    "light": {"ink": "#1a1d1c", "soft": "#59615e", "grid": "#dfe3e1", "good": "#6fb3a9", "other": "#b9bfbd"},
    "dark": {"ink": "#e9edeb", "soft": "#a3aca8", "grid": "#343a38", "good": "#1f8577", "other": "#5c6562"},
}


@dataclass(frozen=True)
class Bar:
    """A row of the chart, and where its numbers stand: the keys that lead to an interval in a file of results."""

    name: str
    under: str
    file: str
    keys: tuple[str, ...]
    by_overdrive: bool = True


# The latest measurement of each, no worse one left out; docs/measured.md has those before.
BARS = (
    Bar("CIFAR-10 CNN from JPEG", "training, statistical", "cpu", ("cifar_statistical", "overdrive statistical")),
    Bar("the same", "training, exact", "cpu", ("cifar_exact", "overdrive exact")),
    Bar("the same", "an expert, by hand, bf16", "cpu", ("cifar", "expert"), by_overdrive=False),
    Bar("VAE", "pytorch/examples, a step", "public", ("vae", "rounding")),
    Bar("MNIST CNN, Keras", "training, rounding", "keras", ("speed",)),
    Bar("U-Net", "a step", "public", ("unet", "rounding")),
    Bar("MNIST CNN", "pytorch/examples, a step", "public", ("mnist", "rounding")),
    Bar("word-level LSTM", "pytorch/examples, a step", "public", ("word_lstm", "rounding")),
    Bar("makemore", "public script, a step", "public", ("makemore", "rounding")),
)


def row(bar: Bar) -> ChartRow:
    """
    Raises:
        KeyError: it was not measured.
    """
    found: Any = json.loads((RESULTS / f"{bar.file}.json").read_text())
    if bar.file == "cpu":
        found = found[bar.keys[0]]["speedup"][bar.keys[1]]
    else:
        for key in bar.keys:
            found = found[key]
    if found.get("verdict", "FASTER") != "FASTER":
        return ChartRow(bar.name, 1.0, 1.0, 1.0, "nothing established", bar.under)
    measured = found.get("speedup", found)
    interval = Interval(measured["low"], measured["estimate"], measured["high"])
    low, estimate, high = (f"{each:.2f}" for each in (interval.low, interval.estimate, interval.high))
    label, kind = f"{estimate}× [{low}, {high}]", "good" if bar.by_overdrive else ""
    return ChartRow(bar.name, interval.low, interval.estimate, interval.high, label, bar.under, kind=kind)


def chart(colours: dict[str, str]) -> str:
    """Bars on a logarithmic axis from plain `python`, with 95 % intervals."""
    rows = [row(each) for each in BARS]
    frame = ChartFrame(WIDTH, len(rows), [1.0, *(each.high for each in rows)])
    drawn = frame.axis()
    start = frame.scale.at(1.0)
    for index, each in enumerate(rows):
        y = frame.middle(index)
        drawn.append(rect(start, y - 7, frame.scale.at(each.estimate) - start, 14, each.kind))
        if each.low < each.high:
            left, right = frame.scale.at(each.low), frame.scale.at(each.high)
            drawn += [line(left, y, right, y, "whisker"), line(left, y - 4, left, y + 4, "whisker")]
            drawn.append(line(right, y - 4, right, y + 4, "whisker"))
        drawn += frame.words(index, each)
    head = text(0, 16, "Times as fast as plain python, the script unchanged", "strong")
    said = text(WIDTH, 16, "2 CPU cores, 95 % intervals", "tick", "end")
    body = f'<g transform="translate(0 {TOP})">{"".join(drawn)}</g>'
    told = "; ".join(f"{each.name}, {each.under}: {each.label}" for each in rows)
    parts = [_style(colours), head, said, body]
    made = drawing(WIDTH, frame.height + TOP, "Times as fast as plain python", told, parts)
    return made.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _style(colours: dict[str, str]) -> str:
    return (
        "<style>text{{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:{ink}}}"
        "text.strong{{font-weight:600}}text.tick{{font-size:12px;fill:{soft}}}"
        "line{{stroke:{grid}}}line.one{{stroke:{soft};stroke-dasharray:2 3}}line.whisker{{stroke:{ink}}}"
        "rect{{fill:{other}}}rect.good{{fill:{good}}}</style>".format(**colours)
    )


def main() -> None:
    for name, colours in COLOURS.items():
        (IMAGES / f"results-{name}.svg").write_text(chart(colours), encoding="utf-8")


if __name__ == "__main__":
    main()
