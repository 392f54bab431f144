"""Pieces of inline SVG, drawn on the server: scales, the frame of a chart of rows, marks. No script; colours
come from the page's style sheet. All text is escaped here; numbers must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDE, NARROW = 720, 340
NARROW_BELOW = 500  # pixels: a phone's drawing
_MOST_DOTS = 240  # in one row; more would only be ink
CHARACTER = 7.6  # pixels that one character of 13 px text may take in a wide font
_SMALL_CHARACTER = 7.0  # ... of 12 px text


@dataclass(frozen=True)
class ChartRow:
    """One row of a chart: a name, an interval, and the single measurements behind it."""

    name: str
    low: float
    estimate: float
    high: float
    label: str = ""  # the interval in words
    under: str = ""  # a second line, small
    dots: tuple[tuple[int, float], ...] = ()  # (lane, value): each process, or run, in a lane of its own
    kind: str = ""  # "good", "bad", "total", "rest" or "" for neither


@dataclass(frozen=True)
class Scale:
    """Places a value between two pixels, on a logarithmic or linear axis."""

    low: float
    high: float
    left: float
    right: float
    log: bool = True

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(value)
        return self.left + (here - low) / (high - low) * (self.right - self.left)

    def clipped(self, value: float) -> float:
        return self.at(min(max(value, self.low), self.high))


class ChartFrame:
    """Rows with names at the left (above, on a phone), numbers at the right, and an axis below.

    `factors`: the values are factors above zero on a log axis; otherwise any numbers, on a linear one.
    """

    def __init__(self, width: int, rows: int, values: Sequence[float], factors: bool = True) -> None:
        self.width, self.wide, self.factors = width, width > NARROW_BELOW, factors
        self.pitch = 44 if self.wide else 62
        self.bottom = rows * self.pitch + 4
        self.height = self.bottom + 24
        low, high = min(values), max(values)
        left, right = (190.0, width - 150.0) if self.wide else (8.0, width - 8.0)
        if factors:
            room = max((high / low) ** 0.04, 1.004)
            self.scale = Scale(low / room, high * room, left, right)
        else:
            margin = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
            self.scale = Scale(low - margin, high + margin, left, right, log=False)

    def middle(self, index: int) -> float:
        return index * self.pitch + (self.pitch / 2 if self.wide else 42)

    def lanes(self) -> list[tuple[float, float]]:
        """Heights (top, bottom) at which marks stand and no words: all of it, or on a phone a lane under each name."""
        if self.wide:
            return [(0.0, self.bottom)]
        return [(top + 29.0, top + 66.0) for top in range(0, self.bottom - 4, self.pitch)]

    def upright(self, x: float, style: str, begin: float = 0.0, end: float = math.inf) -> list[str]:
        """A line from height `begin` to `end`, and through no words."""
        parts = [(max(top, begin), min(bottom, end)) for top, bottom in self.lanes()]
        return [line(x, top, x, bottom, style) for top, bottom in parts if top < bottom]

    def band(self, low: float, high: float, style: str) -> list[str]:
        """Between two values of the axis, behind all rows."""
        left, right = self.scale.clipped(low), self.scale.clipped(high)
        return [rect(left, top, right - left, bottom - top, style) for top, bottom in self.lanes()]

    def axis(self) -> list[str]:
        drawn = []
        for tick in self._ticks(8 if self.wide else 5):
            x = self.scale.at(tick)
            drawn += self.upright(x, "one" if tick == 1 and self.factors else "grid")
            drawn.append(text(x, self.bottom + 18, f"{tick:,g}×" if self.factors else f"{tick:g}", "tick", "middle"))
        return drawn

    def marks(self, index: int, row: ChartRow) -> list[str]:
        """A row's dots, its interval and estimate, and its words."""
        y, at = self.middle(index), self.scale.clipped
        lanes = {lane: place for place, lane in enumerate(sorted({lane for lane, _ in row.dots}))}
        spread = 14 / max(len(lanes) - 1, 1)
        top = y - 7 if len(lanes) > 1 else y
        drawn = [circle(at(value), top + lanes[lane] * spread, 2.2, "dot") for lane, value in _thin(row.dots)]
        if row.low < row.high:
            drawn += whisker(at(row.low), at(row.high), y, f"interval {row.kind}")
        drawn.append(circle(at(row.estimate), y, 4, f"mark {row.kind}"))
        return drawn + self.words(index, row)

    def _ticks(self, most: int) -> list[float]:
        low, high = self.scale.low, self.scale.high
        if self.factors:
            return log_ticks(low, high, most)
        return [tick for tick in linear_ticks(low, high) if low <= tick <= high][:most]

    def words(self, index: int, row: ChartRow) -> list[str]:
        y = self.middle(index)
        style = "strong" if row.kind == "total" else "name"
        if not self.wide:
            room = self.width - len(row.label) * CHARACTER - 16
            name = fit(row.name, room)
            drawn = [text(0, y - 19, name, style), text(self.width, y - 19, row.label, "number", "end")]
            begin = (len(name) + 1) * CHARACTER
            if row.under and begin + len(row.under) * _SMALL_CHARACTER <= room:
                drawn.append(text(begin, y - 19, row.under, "tick"))
            return drawn
        drawn = [text(self.width, y + 4, row.label, "number", "end")]
        if row.under:
            drawn.append(text(0, y - 3, fit(row.name, 176), style))
            drawn.append(text(0, y + 13, fit(row.under, 190), "tick"))
        else:
            drawn.append(text(0, y + 4, fit(row.name, 176), style))
        return drawn


def ends_of(rows: Sequence[ChartRow]) -> list[float]:
    """All that has to have room on the axis."""
    return [value for row in rows for value in (row.low, row.high, *(each for _, each in row.dots))]


def drawing(width: float, height: float, title: str, said: str, drawn: Iterable[str]) -> str:
    label = escape(f"{title}. {said}" if said else title, quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img"'
        f' aria-label="{label}"><title>{escape(title)}</title>{"".join(drawn)}</svg>'
    )


def text(x: float, y: float, value: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(value)}</text>'


def rect(x: float, y: float, w: float, h: float, style: str, radius: int = 0, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0):.1f}" height="{h:.1f}" rx="{radius}"'
        f' class="{escape(style, quote=True)}">{inside}</rect>'
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def circle(x: float, y: float, radius: float, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{style}"/>'


def whisker(left: float, right: float, y: float, style: str) -> list[str]:
    ends = [line(x, y - 4, x, y + 4, style) for x in (left, right)]
    return [line(left, y, right, y, style), *ends]


def points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def fit(value: str, pixels: float) -> str:
    room = max(int(pixels / CHARACTER), 1)
    return value if len(value) <= room else value[: room - 1] + "…"


def fit_end(value: str, pixels: float) -> str:
    """The end of a text that is too long: of a tensor's name the last part tells most."""
    room = max(int(pixels / CHARACTER), 1)
    return value if len(value) <= room else "…" + value[1 - room :]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round speed-ups between two others, at most `most` of them, as close as that allows."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    best: list[float] = [1.0] if low <= 1 <= high else []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [float(f"{s * 10.0**d:.3g}") for d in decades for s in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most and len(found) >= len(best):
            best = found
    for step in (0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001):
        if (high - low) / step > 40:
            break
        found = [round(i * step, 6) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
        # on a log axis even steps crowd at the right: keep them where the axis is nearly linear
        if high / low < 3 and len(found) <= most and len(found) > len(best):
            best = found
    return best


def linear_ticks(low: float, high: float) -> list[float]:
    if high - low < 1e-12 * max(abs(high), 1e-300):
        pad = abs(high) * 0.05 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next((s for s in (1, 2, 2.5, 5, 10) if s * unit >= rough), 10)
    return [float(f"{i * step:.10g}") for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def step_ticks(longest: int, most: int) -> list[int]:
    """Round step numbers for the axis, from the first to the last."""
    unit = 10 ** math.floor(math.log10(max(longest / most, 1)))
    every = next(s * unit for s in (1, 2, 5, 10) if s * unit * most >= longest)
    inner = [step for step in range(every, longest, every) if longest - step >= 0.6 * every]
    return [1, *(step for step in inner if step > 1), longest]


def _thin(dots: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Dots to draw: not too many, evenly spread, with the lowest and the highest."""
    if len(dots) <= _MOST_DOTS:
        return list(dots)
    kept = [dots[i * len(dots) // _MOST_DOTS] for i in range(_MOST_DOTS - 2)]
    return [*kept, min(dots, key=lambda dot: dot[1]), max(dots, key=lambda dot: dot[1])]
