"""Draws a search of hyperparameters: its runs one after the other, metric against cost, all values side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from overdrive.report import svg

_FAR = 3.0  # times as far behind the middle run as that is behind the best: drawn at the edge
_LOG_FROM = 10.0  # times between the ends of an axis of costs
_MOST_CHOICES = 6  # written beside an axis


@dataclass(frozen=True)
class Dot:
    """A run: when, what it came to (None: to nothing), whether it went to its end, and whether it is the chosen one."""

    number: int
    value: float | None
    whole: bool = True
    chosen: bool = False


@dataclass(frozen=True)
class Priced:
    """A run by its cost and metric. `front`: none beats it in both; `name`: written beside it."""

    cost: float
    metric: float
    front: bool = False
    chosen: bool = False
    name: str = ""


@dataclass(frozen=True)
class Axis:
    """A parameter: the places of its ends, or of all its choices, on one line from 0 to 1. `low` may be the larger."""

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
        return min(1.0, max(0.0, (number - low) / (high - low))) if high != low else 0.5

    @property
    def ends(self) -> tuple[str, str]:
        return (self.choices[0], self.choices[-1]) if self.choices else (f"{self.low:.3g}", f"{self.high:.3g}")


def span(values: Sequence[float], maximize: bool, held: Sequence[float] = ()) -> tuple[float, float]:
    """The worst and the best that are drawn: runs far behind the middle one would leave no room for the others.

    Args:
        held: what is drawn in any case.
    """
    ordered = sorted([*values, *held], reverse=maximize)
    best, middle = ordered[0], ordered[len(ordered) // 2]
    limit = middle + _FAR * (middle - best)
    inside = [each for each in ordered if (each >= limit if maximize else each <= limit)]
    worst = [inside[-1], *held]
    return (min(worst) if maximize else max(worst)), best


def history(points: Sequence[Dot], defaults: float, maximize: bool, width: int, reached: bool = True) -> str:
    """What each run came to, what was best so far, and the defaults' as a line; at the edge what came to nothing.

    Args:
        reached: False where the defaults took so long without reaching the target.
    """
    values = [each.value for each in points if each.value is not None]
    if not values:
        return ""
    worst, best = span(values, maximize, (defaults,))
    frame = _Frame(width, min(worst, best), max(worst, best))
    last = max(each.number for each in points)
    across = svg.Scale(0, max(1, last), frame.left + 8, width - 8, log=False)
    drawn = [*frame.grid(), svg.line(frame.left, frame.up(defaults), width, frame.up(defaults), "one")]
    for number in sorted({0, last // 2, last}):
        drawn.append(svg.text(across.at(number), frame.bottom + 20, f"{number}", "tick", "middle"))
    so_far, way = defaults, []
    for each in sorted(points, key=lambda each: each.number):
        before = so_far
        if each.whole and each.value is not None:
            so_far = max(so_far, each.value) if maximize else min(so_far, each.value)
        way += [(across.at(each.number), frame.up(before)), (across.at(each.number), frame.up(so_far))]
    drawn.append(f'<polyline class="curve after" points="{svg.points(way)}"/>')
    edge = frame.bottom if maximize else frame.top
    for each in points:
        x = across.at(each.number)
        if each.value is None:
            drawn.append(svg.line(x, frame.bottom - 5, x, frame.bottom + 3, "interval bad"))
        elif not min(worst, best) <= each.value <= max(worst, best):
            drawn.append(_arrow(x, edge, down=maximize))
        else:
            style = "mark good" if each.chosen else "mark" if each.whole else "dot"
            drawn.append(svg.circle(x, frame.up(each.value), 5 if each.chosen else 3.5, style))
    label = frame.up(defaults) + (14 if maximize else -6)  # the better side has the runs
    named = "defaults" if reached else "defaults: not reached until here"
    drawn.append(svg.text(width, label, named, "tick over", "end"))
    came = f"came to {defaults:.4g}" if reached else f"did not reach it in {defaults:.4g}"
    said = f"{len(points)} runs; the defaults {came}, the best run came to {so_far:.4g}"
    return svg.drawing(width, frame.height, "What each run came to", said, drawn)


def tradeoff(points: Sequence[Priced], maximize: bool, told: Callable[[float], str], width: int) -> str:
    """Metric against cost; the stairs go through the runs of which none is beaten in both.

    Args:
        told: a cost in words.
    """
    worst, best = span([each.metric for each in points], maximize, [each.metric for each in points if each.name])
    shown = [each for each in points if min(worst, best) <= each.metric <= max(worst, best)]
    low, high = min(each.cost for each in shown), max(each.cost for each in shown)
    frame = _Frame(width, min(worst, best), max(worst, best))
    log = low > 0 and high > _LOG_FROM * low
    room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    ends = (low / 1.1, high * 1.1) if log else (low - room, high + room)
    across = svg.Scale(*ends, frame.left + 8, width - 8, log=log)
    ticks = svg.log_ticks(*ends, 5) if log else [each for each in svg.linear_ticks(*ends) if ends[0] <= each <= ends[1]]
    every = 1 if width > svg.NARROW_BELOW or len(ticks) <= 3 else 2
    drawn = frame.grid()
    for tick in ticks[::every]:
        drawn.append(svg.line(across.at(tick), frame.top, across.at(tick), frame.bottom, "grid"))
        drawn.append(svg.text(across.at(tick), frame.bottom + 20, told(tick), "tick", "middle"))
    front = sorted((each for each in shown if each.front), key=lambda each: each.cost)
    way: list[tuple[float, float]] = []
    for each in front:
        if way:
            way.append((across.at(each.cost), way[-1][1]))
        way.append((across.at(each.cost), frame.up(each.metric)))
    if way:
        drawn.append(f'<polyline class="curve after" points="{svg.points([*way, (width - 8, way[-1][1])])}"/>')
    for each in sorted(shown, key=lambda each: (each.front, bool(each.name))):
        style = "mark good" if each.front or each.chosen else "mark total" if each.name else "dot"
        x, y = across.at(each.cost), frame.up(each.metric)
        drawn.append(svg.circle(x, y, 5 if each.name else 3.5, style))
        if each.name:
            right = x < 0.75 * width
            drawn.append(
                svg.text(x + (9 if right else -9), y + 15, each.name, "tick over", "start" if right else "end")
            )
    said = f"{len(points)} runs, of which {len(front)} are not beaten in both"
    return svg.drawing(width, frame.height, "Metric against cost", said, drawn)


def shares(rows: Sequence[tuple[str, float]], width: int) -> str:
    """A bar for each parameter, its share of 1 in words beside it."""
    left, right = (190.0, width - 60.0) if width > svg.NARROW_BELOW else (120.0, width - 48.0)
    drawn = []
    for place, (name, share) in enumerate(rows):
        y = 8.0 + 30 * place
        drawn.append(svg.text(0, y + 12, svg.fit(name, left - 10), "name"))
        drawn.append(svg.rect(left, y, max(1.0, min(1.0, share) * (right - left)), 16, "bar", 2))
        drawn.append(svg.text(width, y + 12, f"{share:.0%}", "number", "end"))
    said = ", ".join(f"{name} {share:.0%}" for name, share in rows)
    return svg.drawing(width, 8 + 30 * len(rows), "The share of each parameter", said, drawn)


def parallel(axes: Sequence[Axis], runs: Sequence[tuple[Sequence[object], bool]], width: int) -> str:
    """A line for each run through its values, the best quarter and the chosen one strong; the metric comes last."""
    if len(axes) < 2 or not runs:
        return ""
    top, bottom, height = 40.0, 232.0, 256.0
    across = svg.Scale(0, len(axes) - 1, 40, width - 40, log=False)
    ranked = sorted(runs, key=lambda each: (each[1], axes[-1].at(each[0][-1])))
    strong = len(ranked) - max(1, len(ranked) // 4)
    drawn = []
    for number, (values, chosen) in enumerate(ranked):
        points = [
            (across.at(place), bottom - axis.at(value) * (bottom - top))
            for place, (axis, value) in enumerate(zip(axes, values, strict=True))
        ]
        style = "chosen" if chosen else "best" if number >= strong else "run"
        drawn.append(f'<polyline class="curve {style}" points="{svg.points(points)}"/>')
    room = (width - 80) / (len(axes) - 1) - 8
    for number, axis in enumerate(axes):
        x = across.at(number)
        drawn.append(svg.line(x, top, x, bottom, "grid"))
        anchor, at = ("end", width) if number == len(axes) - 1 and room < 90 else ("middle", x)
        drawn.append(svg.text(at, 13, svg.fit(axis.name, room + (30 if anchor == "end" else 0)), "strong", anchor))
        low, high = axis.ends
        drawn.append(svg.text(x, bottom + 18, low, "tick", "middle"))
        drawn.append(svg.text(x, top - 8, high, "tick", "middle"))
        between = axis.choices[1:-1] if width > svg.NARROW_BELOW and len(axis.choices) <= _MOST_CHOICES else ()
        for choice in between:
            drawn.append(svg.text(x + 5, bottom - axis.at(choice) * (bottom - top) + 4, choice, "tick over"))
    return svg.drawing(width, height, "The values of each run, and what it came to", f"{len(runs)} runs", drawn)


class _Frame:
    """Lines of a linear axis at the left, with its numbers."""

    def __init__(self, width: int, low: float, high: float) -> None:
        self.width = width
        self.height, self.bottom, self.left = (260, 226, 60) if width > svg.NARROW_BELOW else (220, 186, 52)
        self.top = 10
        self._ticks = svg.linear_ticks(low, high)
        ends = min(self._ticks[0], low), max(self._ticks[-1], high)
        self._scale = svg.Scale(*ends, self.bottom, self.top, log=False)

    def up(self, value: float) -> float:
        return self._scale.clipped(value)

    def grid(self) -> list[str]:
        drawn = []
        for tick in self._ticks:
            drawn.append(svg.line(self.left, self.up(tick), self.width, self.up(tick), "grid"))
            drawn.append(svg.text(self.left - 8, self.up(tick) + 4, f"{tick:g}", "tick", "end"))
        return drawn


def _arrow(x: float, edge: float, down: bool) -> str:
    """Of a run beyond the scale."""
    tip = edge if down else edge - 1
    back = tip - 7 if down else tip + 7
    return f'<polygon class="dot" points="{svg.points([(x, tip), (x - 4, back), (x + 4, back)])}"/>'
