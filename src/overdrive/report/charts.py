"""Draws the charts of speed: what each technique gave, every duel, a step's time, the loss.

Every chart takes its width in pixels, so that a page can hold one drawing for a desk and one for a phone,
with text of the same size in both. Numbers must be finite and speed-ups above zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from overdrive.core.in_runs import in_runs
from overdrive.core.units import milliseconds
from overdrive.report import svg

MOST_POINTS = 200  # along a curve


def waterfall(parts: Sequence[svg.ChartRow], total: svg.ChartRow | None, width: int = svg.WIDE) -> str:
    """How the adopted techniques add up, in log-speedup: each bar begins where the one above it ends."""
    if not parts:
        return ""
    begins = [1.0]
    for part in parts:
        begins.append(begins[-1] * part.estimate)
    rows = [*parts, total] if total else list(parts)
    begins = [*begins[:-1], 1.0][: len(rows)]
    ends = [(b * row.low, b * row.estimate, b * row.high) for b, row in zip(begins, rows, strict=True)]
    frame = svg.ChartFrame(width, len(rows), [1.0, *begins, *(value for end in ends for value in end)])
    drawn = frame.axis()
    for index, (row, begin, (low, end, high)) in enumerate(zip(rows, begins, ends, strict=True)):
        y, at = frame.middle(index), frame.scale.at
        left, right = sorted((at(begin), at(end)))
        kind = row.kind or ("good" if row.estimate >= 1 else "bad")
        drawn.append(svg.rect(left, y - 9, max(right - left, 1.5), 18, f"bar {kind}", radius=2))
        if low < high:
            drawn += svg.whisker(at(low), at(high), y, "whisker")
        drawn += frame.words(index, row)
        if index + 1 < len(parts) or (row.kind == "rest" and total):  # to where the next bar begins, or ends
            drawn += frame.upright(at(end), "link", y + 9, frame.middle(index + 1) - 9)
    said = "; ".join(f"{row.name} {row.label}" for row in rows)
    return svg.drawing(width, frame.height, "Contribution of each technique to the speed-up", said, drawn)


def duels(rows: Sequence[svg.ChartRow], noise: float | None, width: int = svg.WIDE) -> str:
    """Every pair of every duel as a dot on a log axis, with the interval and the line of no change."""
    return intervals(rows, "Speed-up of every pair in every duel, on a log axis", noise, width)


def intervals(rows: Sequence[svg.ChartRow], title: str, noise: float | None = None, width: int = svg.WIDE) -> str:
    """Rows on a log axis, with the line of no change and, shaded, the `noise` about it."""
    if not rows:
        return ""
    frame = svg.ChartFrame(width, len(rows), [1.0, *svg.ends_of(rows)])
    drawn = frame.axis()
    if noise:
        drawn = frame.band(1 / (1 + noise), 1 + noise, "noise") + drawn
    for index, row in enumerate(rows):
        drawn += frame.marks(index, row)
    said = "; ".join(f"{row.name} {row.under} {row.label}" for row in rows)
    return svg.drawing(width, frame.height, title, said, drawn)


Bars = Sequence[tuple[str, Sequence[tuple[str, float]]]]  # (name, [(part, seconds)…])


def step_time(bars: Bars, step: str = "step", width: int = svg.WIDE) -> str:
    """`step`: what one is called."""
    return stacked(bars, width, f"Where the time of a {step} goes", f"per {step}")


def item_time(bars: Bars, width: int = svg.WIDE) -> str:
    return stacked(bars, width, "Where the time of an item of the data goes", "per item")


def stacked(bars: Bars, width: int, title: str, unit: str) -> str:
    """One stacked bar of times for each name, all to one scale."""
    longest = max((sum(seconds for _, seconds in parts) for _, parts in bars), default=0.0)
    if longest <= 0:
        return ""
    scale = svg.Scale(0.0, longest, 0.0, width, log=False)
    drawn, y = [], 0.0
    for name, parts in bars:
        total = sum(seconds for _, seconds in parts)
        number = f"{milliseconds(total)} {unit}"
        drawn.append(svg.text(0, y + 13, svg.fit(name, width - len(number) * svg.CHARACTER - 16), "strong"))
        drawn.append(svg.text(width, y + 13, number, "number", "end"))
        x = 0.0
        for part, seconds in parts:
            across = scale.at(seconds)
            label = f"{name}: {part} {milliseconds(seconds)}"
            drawn.append(svg.rect(x, y + 22, max(across - 1, 0.4), 30, f"part {part}", title=label))
            label = f"{part} {milliseconds(seconds)}"
            if across > len(label) * svg.CHARACTER + 12:
                drawn.append(svg.text(x + 8, y + 41, label, f"on-part on-{part}"))
            elif across > len(part) * svg.CHARACTER + 12:
                drawn.append(svg.text(x + 8, y + 41, part, f"on-part on-{part}"))
            x += across
        y += 78
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part} {milliseconds(seconds)}" for part, seconds in parts) for name, parts in bars
    )
    return svg.drawing(width, y - 22, title, said, drawn)


def counts(rows: Sequence[tuple[str, int]], title: str, width: int = svg.WIDE) -> str:
    """A bar for each name, as long as its number."""
    most, drawn, y = max(number for _, number in rows), [], 0.0
    for name, number in rows:
        label = f"{number:,}"
        drawn.append(svg.text(0, y + 13, svg.fit(name, width - len(label) * svg.CHARACTER - 16), "name"))
        drawn.append(svg.text(width, y + 13, label, "number", "end"))
        drawn.append(svg.rect(0, y + 20, max(number / most * width, 1.0), 8, "part forward", title=f"{name}: {label}"))
        y += 42
    said = "; ".join(f"{name}: {number:,}" for name, number in rows)
    return svg.drawing(width, y - 8, title, said, drawn)


def losses(
    before: Sequence[float | None],
    after: Sequence[float | None],
    seeds: Sequence[Sequence[float | None]],
    width: int = svg.WIDE,
) -> str:
    """Loss over steps, before and after, over the band from the lowest to the highest of the seeds."""
    longest = max((len(curve) for curve in (before, after, *seeds)), default=0)
    size = max(1, math.ceil(longest / MOST_POINTS))
    lines = [_means(before, size), _means(after, size)]
    spread = band([_means(curve, size) for curve in seeds])
    values = [value for line in lines for _, value in line] + [v for _, *pair in spread for v in pair]
    if longest < 2 or not values:
        return ""
    ticks = svg.linear_ticks(min(values), max(values))
    height, bottom, left = (260, 226, 46) if width > svg.NARROW_BELOW else (220, 186, 40)
    across = svg.Scale(1, longest, left, width - 4, log=False)
    up = svg.Scale(min(ticks[0], *values), max(ticks[-1], *values), bottom, 10, log=False)
    drawn = []
    for tick in ticks:
        drawn.append(svg.line(left, up.at(tick), width, up.at(tick), "grid"))
        drawn.append(svg.text(left - 8, up.at(tick) + 4, f"{tick:g}", "tick", "end"))
    for step in svg.step_ticks(longest, 6 if width > svg.NARROW_BELOW else 3):
        anchor = "end" if step == longest else "middle"
        drawn.append(svg.text(across.at(step), bottom + 20, f"{step:,}", "tick", anchor))
    centre = size / 2 + 0.5  # the middle of a group of steps
    if spread:
        edge = [(across.clipped(i * size + centre), up.at(high)) for i, _, high in spread]
        edge += [(across.clipped(i * size + centre), up.at(low)) for i, low, _ in reversed(spread)]
        drawn.append(f'<polygon class="band" points="{svg.points(edge)}"/>')
    for line, kind in zip(lines, ("before", "after"), strict=True):
        for run in in_runs(line, lambda point: point[0]):  # no line crosses a gap, where groups are missing
            points = svg.points((across.clipped(i * size + centre), up.at(value)) for i, value in run)
            drawn.append(f'<polyline class="curve {kind}" points="{points}"/>')
    ends = [f"{name} ends at {line[-1][1]:.4g}" for name, line in zip(("before", "after"), lines, strict=True) if line]
    return svg.drawing(width, height, f"Loss over {longest:,} steps", "; ".join(ends), drawn)


def band(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float, float]]:
    """The lowest and highest of two or more curves, where all of them have a value: (place, low, high)."""
    if len(curves) < 2:
        return []
    at = [dict(curve) for curve in curves]
    shared = sorted(set(at[0]).intersection(*at[1:]))
    return [(i, min(c[i] for c in at), max(c[i] for c in at)) for i in shared]


def _means(curve: Sequence[float | None], size: int) -> list[tuple[int, float]]:
    """Means over groups of `size` steps, as (group, mean); a group that lacks a value is left out."""
    found = []
    for start in range(0, len(curve), size):
        group = [value for value in curve[start : start + size] if value is not None]
        if len(group) == len(curve[start : start + size]):
            found.append((start // size, math.fsum(group) / len(group)))
    return found
