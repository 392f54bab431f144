"""Draws a search of hyperparameters: its runs one after the other, and all values of each run side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from overdrive.report import svg


@dataclass(frozen=True)
class Dot:
    """A run: when, its metric, whether it went to its end, and whether it is the chosen one."""

    number: int
    metric: float
    whole: bool = True
    chosen: bool = False


@dataclass(frozen=True)
class Axis:
    """A parameter: the places of its ends, or of all its choices, on one line from 0 to 1."""

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[str, ...] = ()

    def at(self, value: object) -> float:
        if self.choices:
            return self.choices.index(str(value)) / max(1, len(self.choices) - 1)
        number = float(value)  # type: ignore[arg-type]
        low, high = self.low, self.high
        if self.log:
            number, low, high = math.log(max(number, self.low)), math.log(low), math.log(high)
        return min(1.0, max(0.0, (number - low) / (high - low))) if high > low else 0.5

    @property
    def ends(self) -> tuple[str, str]:
        return (self.choices[0], self.choices[-1]) if self.choices else (f"{self.low:.3g}", f"{self.high:.3g}")


def history(points: Sequence[Dot], defaults: float, maximize: bool, width: int) -> str:
    """The metric of each run, what was best so far, and the defaults' as a line."""
    if not points:
        return ""
    values = [defaults, *(each.metric for each in points)]
    ticks = svg.linear_ticks(min(values), max(values))
    height, bottom, left = (260, 226, 60) if width > svg.NARROW_BELOW else (220, 186, 52)
    last = max(each.number for each in points)
    across = svg.Scale(0, max(1, last), left + 8, width - 8, log=False)
    up = svg.Scale(min(ticks[0], *values), max(ticks[-1], *values), bottom, 10, log=False)
    drawn = []
    for tick in ticks:
        drawn.append(svg.line(left, up.at(tick), width, up.at(tick), "grid"))
        drawn.append(svg.text(left - 8, up.at(tick) + 4, f"{tick:g}", "tick", "end"))
    drawn.append(svg.line(left, up.at(defaults), width, up.at(defaults), "one"))
    drawn.append(svg.text(width, up.at(defaults) - 5, "defaults", "tick", "end"))
    for number in sorted({0, last // 2, last}):
        drawn.append(svg.text(across.at(number), bottom + 20, f"{number}", "tick", "middle"))
    best, way = defaults, []
    for each in sorted(points, key=lambda each: each.number):
        before = best
        if each.whole:
            best = max(best, each.metric) if maximize else min(best, each.metric)
        way += [(across.at(each.number), up.at(before)), (across.at(each.number), up.at(best))]
    drawn.append(f'<polyline class="curve after" points="{svg.points(way)}"/>')
    for each in points:
        style = "mark good" if each.chosen else "mark" if each.whole else "dot"
        drawn.append(svg.circle(across.at(each.number), up.at(each.metric), 5 if each.chosen else 3.5, style))
    said = f"{len(points)} runs; the defaults came to {defaults:.4g}, the best run to {best:.4g}"
    return svg.drawing(width, height, "The metric of each run", said, drawn)


def parallel(axes: Sequence[Axis], runs: Sequence[tuple[Sequence[object], bool]], width: int) -> str:
    """A line for each run through its values, the chosen one strong; the last axis is the metric."""
    if len(axes) < 2 or not runs:
        return ""
    top, bottom, height = 34.0, 226.0, 262.0
    across = svg.Scale(0, len(axes) - 1, 40, width - 40, log=False)
    drawn = []
    room = (width - 80) / (len(axes) - 1) - 8
    for number, axis in enumerate(axes):
        x = across.at(number)
        drawn.append(svg.line(x, top, x, bottom, "grid"))
        drawn.append(svg.text(x, 14, svg.fit(axis.name, room), "strong", "middle"))
        low, high = axis.ends
        drawn.append(svg.text(x, bottom + 18, low, "tick", "middle"))
        drawn.append(svg.text(x, top - 5, high, "tick", "middle"))
    for values, chosen in sorted(runs, key=lambda each: each[1]):
        points = [
            (across.at(number), bottom - axis.at(value) * (bottom - top))
            for number, (axis, value) in enumerate(zip(axes, values, strict=True))
        ]
        drawn.append(f'<polyline class="curve {"after" if chosen else "run"}" points="{svg.points(points)}"/>')
    return svg.drawing(width, height, "The values of each run, and its metric", f"{len(runs)} runs", drawn)
