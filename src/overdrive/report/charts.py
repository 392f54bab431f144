"""Small charts as inline SVG, drawn on the server: no script, colours from the page's style sheet.

Every chart takes its width in pixels, so that a page can hold one drawing for a desk and one for a phone,
with text of the same size in both. All text is escaped here; numbers must be finite and speed-ups above zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDE, NARROW = 720, 340
_NARROW_BELOW = 500
_CHARACTER = 7.6  # pixels that one character of 13 px text may take in a wide font
_MOST_DOTS = 240  # in one row; more would only be ink
MOST_POINTS = 200  # along a curve


@dataclass(frozen=True)
class Row:
    """One row of a chart of speed-ups: a name, an interval, and the single measurements behind it."""

    name: str
    low: float
    estimate: float
    high: float
    label: str = ""  # the interval in words
    under: str = ""  # a second line, small
    dots: tuple[tuple[int, float], ...] = ()  # (process, speed-up of one pair)
    kind: str = ""  # "good", "bad", "total" or "" for neither


@dataclass(frozen=True)
class _Scale:
    """Where a value lies between two pixels, on a logarithmic or linear axis."""

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


def waterfall(parts: Sequence[Row], total: Row | None, width: int = WIDE) -> str:
    """How the adopted techniques add up, in log-speedup: each bar begins where the one above it ends."""
    if not parts:
        return ""
    starts = [1.0]
    for part in parts:
        starts.append(starts[-1] * part.estimate)
    rows = [*parts, total] if total else list(parts)
    begins = [*starts[:-1], 1.0][: len(rows)]
    ends = [(b * row.low, b * row.estimate, b * row.high) for b, row in zip(begins, rows, strict=True)]
    frame = _Frame(width, len(rows), [1.0, *begins, *(value for end in ends for value in end)])
    drawn = frame.axis()
    for index, (row, begin, (low, end, high)) in enumerate(zip(rows, begins, ends, strict=True)):
        y, at = frame.middle(index), frame.scale.at
        left, right = sorted((at(begin), at(end)))
        kind = row.kind or ("good" if row.estimate >= 1 else "bad")
        drawn.append(_rect(left, y - 9, max(right - left, 1.5), 18, f"bar {kind}", radius=2))
        drawn += _whisker(at(low), at(high), y, "whisker")
        drawn += frame.words(index, row)
        if index + 1 < len(parts):  # from the end of this bar to the beginning of the next one
            drawn.append(_line(at(end), y + 9, at(end), frame.middle(index + 1) - 9, "link"))
    said = "; ".join(f"{row.name} {row.label}" for row in rows)
    return _svg(width, frame.height, "Contribution of each technique to the speed-up", said, drawn)


def duels(rows: Sequence[Row], noise: float | None, width: int = WIDE) -> str:
    """Every pair of every duel as a dot on a log axis, with the interval and the line of no change."""
    if not rows:
        return ""
    values = [1.0]
    for row in rows:
        values += [row.low, row.high, *(value for _, value in row.dots)]
    frame = _Frame(width, len(rows), values)
    drawn = frame.axis()
    if noise:
        left, right = frame.scale.clipped(1 / (1 + noise)), frame.scale.clipped(1 + noise)
        drawn.insert(0, _rect(left, 0, right - left, frame.bottom, "noise"))
    for index, row in enumerate(rows):
        y = frame.middle(index)
        lanes = sorted({process for process, _ in row.dots})
        spread = 14 / max(len(lanes) - 1, 1)
        for process, value in _thin(row.dots, _MOST_DOTS):  # each fresh process in a lane of its own
            lane = y if len(lanes) == 1 else y - 7 + lanes.index(process) * spread
            drawn.append(_circle(frame.scale.at(value), lane, 2.2, "dot"))
        low, high = frame.scale.at(row.low), frame.scale.at(row.high)
        drawn += _whisker(low, high, y, f"interval {row.kind}")
        drawn.append(_circle(frame.scale.at(row.estimate), y, 4, f"mark {row.kind}"))
        drawn += frame.words(index, row)
    said = "; ".join(f"{row.name} {row.under} {row.label}" for row in rows)
    return _svg(width, frame.height, "Speed-up of every pair in every duel, on a log axis", said, drawn)


def step_time(bars: Sequence[tuple[str, Sequence[tuple[str, float]]]], width: int = WIDE) -> str:
    """Where a step's time goes: one stacked bar for each (name, [(part, seconds)…]), all to one scale."""
    longest = max((sum(seconds for _, seconds in parts) for _, parts in bars), default=0.0)
    if longest <= 0:
        return ""
    scale = _Scale(0.0, longest, 0.0, width, log=False)
    drawn, y = [], 0.0
    for name, parts in bars:
        total = sum(seconds for _, seconds in parts)
        drawn.append(_text(0, y + 13, name, "strong"))
        drawn.append(_text(width, y + 13, f"{_milliseconds(total)} per step", "number", "end"))
        x = 0.0
        for part, seconds in parts:
            across = scale.at(seconds)
            title = f"{name}: {part} {_milliseconds(seconds)}"
            drawn.append(_rect(x, y + 22, max(across - 1, 0.4), 30, f"part {part}", title=title))
            label = f"{part} {_milliseconds(seconds)}"
            if across > len(label) * _CHARACTER + 12:
                drawn.append(_text(x + 8, y + 41, label, "on-part"))
            elif across > len(part) * _CHARACTER + 12:
                drawn.append(_text(x + 8, y + 41, part, "on-part"))
            x += across
        y += 78
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part} {_milliseconds(seconds)}" for part, seconds in parts) for name, parts in bars
    )
    return _svg(width, y - 22, "Where the time of a step goes", said, drawn)


def losses(
    before: Sequence[float | None],
    after: Sequence[float | None],
    seeds: Sequence[Sequence[float | None]],
    width: int = WIDE,
) -> str:
    """Loss over steps, before and after, over the band from the lowest to the highest of the seeds."""
    longest = max((len(curve) for curve in (before, after, *seeds)), default=0)
    size = max(1, math.ceil(longest / MOST_POINTS))
    lines = [_means(before, size), _means(after, size)]
    spread = band([_means(curve, size) for curve in seeds])
    values = [value for line in lines for _, value in line] + [v for _, *pair in spread for v in pair]
    if longest < 2 or not values:
        return ""
    ticks = _linear_ticks(min(values), max(values))
    height, bottom, left = (260, 226, 46) if width > _NARROW_BELOW else (220, 186, 40)
    across = _Scale(1, longest, left, width - 4, log=False)
    up = _Scale(min(ticks[0], *values), max(ticks[-1], *values), bottom, 10, log=False)
    drawn = []
    for tick in ticks:
        drawn.append(_line(left, up.at(tick), width, up.at(tick), "grid"))
        drawn.append(_text(left - 8, up.at(tick) + 4, f"{tick:g}", "tick", "end"))
    for step in _steps(longest, 6 if width > _NARROW_BELOW else 3):
        anchor = "end" if step == longest else "middle"
        drawn.append(_text(across.at(step), bottom + 20, f"{step:,}", "tick", anchor))
    centre = size / 2 + 0.5  # the middle of a group of steps
    if spread:
        edge = [(across.clipped(i * size + centre), up.at(high)) for i, _, high in spread]
        edge += [(across.clipped(i * size + centre), up.at(low)) for i, low, _ in reversed(spread)]
        drawn.append(f'<polygon class="band" points="{_points(edge)}"/>')
    for line, kind in zip(lines, ("before", "after"), strict=True):
        for run in _runs(line):
            points = _points((across.clipped(i * size + centre), up.at(value)) for i, value in run)
            drawn.append(f'<polyline class="curve {kind}" points="{points}"/>')
    ends = [f"{name} ends at {line[-1][1]:.4g}" for name, line in zip(("before", "after"), lines, strict=True) if line]
    return _svg(width, height, f"Loss over {longest:,} steps", "; ".join(ends), drawn)


def band(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float]]:
    """The lowest and highest of two or more curves, where all of them have a value: (place, low, high)."""
    if len(curves) < 2:
        return []
    at = [dict(curve) for curve in curves]
    shared = sorted(set(at[0]).intersection(*at[1:]))
    return [(i, min(c[i] for c in at), max(c[i] for c in at)) for i in shared]


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


# --- Frames and pieces ---


class _Frame:
    """Rows with names at the left (above, on a phone), intervals at the right, and a log axis below."""

    def __init__(self, width: int, rows: int, values: Sequence[float]) -> None:
        self.width, self.wide = width, width > _NARROW_BELOW
        self.pitch = 44 if self.wide else 62
        self.bottom = rows * self.pitch + 4
        self.height = self.bottom + 24
        low, high = min(values), max(values)
        room = max((high / low) ** 0.04, 1.004)
        left, right = (190.0, width - 150.0) if self.wide else (8.0, width - 8.0)
        self.scale = _Scale(low / room, high * room, left, right)

    def middle(self, index: int) -> float:
        return index * self.pitch + (self.pitch / 2 if self.wide else 42)

    def axis(self) -> list[str]:
        drawn = []
        for tick in log_ticks(self.scale.low, self.scale.high, 8 if self.wide else 5):
            x = self.scale.at(tick)
            drawn.append(_line(x, 0, x, self.bottom, "one" if tick == 1 else "grid"))
            drawn.append(_text(x, self.bottom + 18, f"{tick:g}×", "tick", "middle"))
        return drawn

    def words(self, index: int, row: Row) -> list[str]:
        y = self.middle(index)
        style = "strong" if row.kind == "total" else "name"
        if not self.wide:
            room = self.width - len(row.label) * _CHARACTER - 16
            name = _fit(row.name, room)
            under = _fit(row.under, room - (len(name) + 1) * _CHARACTER) if row.under else ""
            drawn = [_text(0, y - 19, name, style), _text(self.width, y - 19, row.label, "number", "end")]
            if len(under) > 3:
                drawn.append(_text((len(name) + 1) * _CHARACTER, y - 19, under, "tick"))
            return drawn
        drawn = [_text(self.width, y + 4, row.label, "number", "end")]
        if row.under:
            drawn.append(_text(0, y - 3, _fit(row.name, 176), style))
            drawn.append(_text(0, y + 13, _fit(row.under, 190), "tick"))
        else:
            drawn.append(_text(0, y + 4, _fit(row.name, 176), style))
        return drawn


def _svg(width: float, height: float, title: str, said: str, drawn: Iterable[str]) -> str:
    label = escape(f"{title}. {said}" if said else title, quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img"'
        f' aria-label="{label}"><title>{escape(title)}</title>{"".join(drawn)}</svg>'
    )


def _text(x: float, y: float, value: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(value)}</text>'


def _rect(x: float, y: float, w: float, h: float, style: str, radius: int = 0, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0):.1f}" height="{h:.1f}" rx="{radius}"'
        f' class="{escape(style, quote=True)}">{inside}</rect>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _circle(x: float, y: float, radius: float, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{style}"/>'


def _whisker(left: float, right: float, y: float, style: str) -> list[str]:
    ends = [_line(x, y - 4, x, y + 4, style) for x in (left, right)]
    return [_line(left, y, right, y, style), *ends]


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _fit(value: str, pixels: float) -> str:
    room = max(int(pixels / _CHARACTER), 1)
    return value if len(value) <= room else value[: room - 1] + "…"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds * 1e3:,.0f} ms"


def _thin(dots: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most `most` of the dots, evenly spread, with the lowest and the highest."""
    if len(dots) <= most:
        return list(dots)
    kept = [dots[i * len(dots) // most] for i in range(most - 2)]
    return [*kept, min(dots, key=lambda dot: dot[1]), max(dots, key=lambda dot: dot[1])]


def _means(curve: Sequence[float | None], size: int) -> list[tuple[int, float]]:
    """Means over groups of `size` steps, as (group, mean); a group that lacks a value is left out."""
    found = []
    for start in range(0, len(curve), size):
        group = [value for value in curve[start : start + size] if value is not None]
        if len(group) == len(curve[start : start + size]):
            found.append((start // size, math.fsum(group) / len(group)))
    return found


def _runs(line: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """A curve cut where groups are missing, so that no line crosses a gap."""
    runs: list[list[tuple[int, float]]] = []
    for place, value in line:
        if runs and runs[-1][-1][0] == place - 1:
            runs[-1].append((place, value))
        else:
            runs.append([(place, value)])
    return runs


def _linear_ticks(low: float, high: float) -> list[float]:
    if high - low < 1e-12 * max(abs(high), 1e-300):
        pad = abs(high) * 0.05 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next((s for s in (1, 2, 2.5, 5, 10) if s * unit >= rough), 10)
    return [float(f"{i * step:.10g}") for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _steps(longest: int, most: int) -> list[int]:
    """Round step numbers for the axis, from the first to the last."""
    unit = 10 ** math.floor(math.log10(max(longest / most, 1)))
    every = next(s * unit for s in (1, 2, 5, 10) if s * unit * most >= longest)
    inner = [step for step in range(every, longest, every) if longest - step >= 0.6 * every]
    return [1, *(step for step in inner if step > 1), longest]
