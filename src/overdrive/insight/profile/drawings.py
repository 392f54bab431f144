"""The profile's own drawings: flame graph, roofline, memory over the step. Inline SVG, no script, all text escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from overdrive.core.units import rate
from overdrive.report import svg
from overdrive.report.reading import mappings, number, positive, sequence, word

_ROW = 19  # pixels of one level of the flame graph
_LEAST = 0.6  # pixels; what is narrower is not drawn
_DEEPEST = 14
_PHASES = ("data", "copy", "forward", "backward", "optimizer", "evaluation", "synchronisation", "python")
_LEAST_OPERATOR = 0.002  # of all operators' time; tiny ones are slow at anything, and would squeeze the others together
_AXIS = 84  # pixels left of the roofline: "100 GFLOP/s"
_MOST_NAMED = 6  # points of the roofline with their name beside them


def milliseconds(seconds: float) -> str:
    if abs(seconds) < 0.9995e-4:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 0.9995 else f"{seconds * 1e3:,.0f} ms"


def flame(tree: Mapping[str, Any], width: int) -> str:
    """A step from the top down: phases, modules, operators; as wide as they take long."""
    whole = positive(tree.get("seconds"))
    if not whole:
        return ""
    drawn: list[str] = []
    deepest = _draw_flame(tree, 0.0, 0, width / whole, "between", drawn)
    said = ", ".join(
        f"{word(each.get('name'), 60)} {_share(each, whole)}" for each in mappings(tree.get("children"))[:8]
    )
    return svg.drawing(width, (deepest + 1) * _ROW + 2, "Flame graph of a step", said, drawn)


def _draw_flame(node: Mapping[str, Any], left: float, level: int, scale: float, phase: str, drawn: list[str]) -> int:
    seconds = positive(node.get("seconds")) or 0.0
    across = seconds * scale
    name = word(node.get("name"), 120)
    style = phase if level else "whole"
    drawn.append(
        svg.rect(left, level * _ROW, across - 0.5, _ROW - 1, f"part {style}", 0, f"{name}: {milliseconds(seconds)}")
    )
    shown = name.removeprefix("aten::")
    if across > 30:
        fitting = svg.fit(shown, across - 8)
        if len(fitting) > 2:
            drawn.append(
                svg.text(left + 4, level * _ROW + 13.5, fitting, f"on-part on-{phase}" if level else "on-whole")
            )
    deepest = level
    if level < _DEEPEST:
        for child in mappings(node.get("children")):
            wide = (positive(child.get("seconds")) or 0.0) * scale
            if wide >= _LEAST:
                kind = word(child.get("name"), 40) if level == 0 else phase
                kind = kind if kind in _PHASES else "between"
                deepest = max(deepest, _draw_flame(child, left, level + 1, scale, kind, drawn))
            left += wide
    return deepest


def _share(node: Mapping[str, Any], whole: float) -> str:
    return f"{(positive(node.get('seconds')) or 0.0) / whole:.0%}"


def roofline(operators: Sequence[Mapping[str, Any]], roof: Mapping[str, Any], width: int) -> str:
    """Operations a second over operations a byte, both on log axes, under what the machine was measured to do."""
    flops, moved, cached = positive(roof.get("flops")), positive(roof.get("bytes")), positive(roof.get("cache_bytes"))
    least = _LEAST_OPERATOR * sum(positive(each.get("seconds")) or 0.0 for each in operators)
    points = [
        (positive(each.get("intensity")), positive(each.get("flops_per_second")), each)
        for each in operators
        if positive(each.get("intensity"))
        and positive(each.get("flops_per_second"))
        and (positive(each.get("seconds")) or 0.0) >= least
    ]
    if not flops or not moved or not points:
        return ""
    ridge = flops / moved
    across = [each[0] or 1.0 for each in points] + [ridge * 4, ridge / 16]
    up = [each[1] or 1.0 for each in points] + [flops * 1.6]
    x = svg.Scale(min(across) / 1.5, max(across) * 1.5, _AXIS, width - 8)
    height = 360 if width > svg.NARROW_BELOW else 300
    y = svg.Scale(10 ** math.floor(math.log10(min(up))), max(up), height - 44, 12)
    drawn = [*_decades(x, lambda at: svg.line(at, 12, at, height - 44, "grid"))]
    for decade in _tens(x):
        drawn.append(svg.text(x.at(decade), height - 26, f"{decade:g}", "tick", "middle"))
    for decade in _tens(y):
        drawn.append(svg.line(_AXIS, y.at(decade), width - 8, y.at(decade), "grid"))
        drawn.append(svg.text(_AXIS - 6, y.at(decade) + 4, rate(decade, "FLOP/s"), "tick", "end"))
    drawn.append(svg.text(width - 8, height - 8, "operations per byte", "tick", "end"))
    drawn += _roof_line(x, y, flops, cached, "roof cache") if cached else []
    drawn += _roof_line(x, y, flops, moved, "roof")
    longest = max(positive(each[2].get("seconds")) or 0.0 for each in points)
    named = sorted(points, key=lambda each: -(positive(each[2].get("seconds")) or 0.0))[:_MOST_NAMED]
    taken: list[tuple[float, float]] = []
    for intensity, speed, each in sorted(points, key=lambda one: -(positive(one[2].get("seconds")) or 0.0)):
        seconds = positive(each.get("seconds")) or 0.0
        here = x.at(intensity or 1.0), y.at(speed or 1.0)
        radius = 3 + 7 * math.sqrt(seconds / longest)
        phase = word(each.get("phase"), 40)
        name = word(each.get("operator"), 60).removeprefix("aten::")
        title = escape(f"{name} ({phase}): {milliseconds(seconds)}")
        kind = phase if phase in _PHASES else "between"
        drawn.append(
            f'<circle cx="{here[0]:.1f}" cy="{here[1]:.1f}" r="{radius:.1f}" class="part point {kind}">'
            f"<title>{title}</title></circle>"
        )
        if any(each is one[2] for one in named) and width > svg.NARROW_BELOW:
            low = here[1] + 4
            while any(abs(low - other) < 14 and abs(here[0] - at) < 190 for at, other in taken):
                low += 14
            taken.append((here[0], low))
            right = here[0] + radius + 4 + len(name) * svg.CHARACTER > width
            at = here[0] - radius - 4 if right else here[0] + radius + 4
            drawn.append(svg.text(at, low, name, "tick", "end" if right else "start"))
    said = f"arithmetic {rate(flops, 'FLOP/s')}, memory {rate(moved, 'B/s')}"
    return svg.drawing(width, height, "Operators under the measured roof of this machine", said, drawn)


def _roof_line(x: svg.Scale, y: svg.Scale, flops: float, moved: float, style: str) -> list[str]:
    ridge = flops / moved
    low = max(x.low, y.low / moved)
    corner = x.clipped(ridge), y.clipped(flops)
    sloped = svg.line(x.at(low), y.clipped(low * moved), *corner, style)
    return [sloped, svg.line(*corner, x.right, corner[1], style)]


def _tens(scale: svg.Scale) -> list[float]:
    return [10.0**d for d in range(math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high)) + 1)]


def _decades(scale: svg.Scale, draw: Any) -> list[str]:
    return [draw(scale.at(decade)) for decade in _tens(scale)]


def memory(data: Mapping[str, Any], width: int) -> str:
    """What fills the memory over some steps, stacked by category."""
    names = [word(each, 40) for each in sequence(data.get("categories"))]
    rows = []
    for each in mappings(data.get("curve")):
        sizes = [max(0.0, number(size) or 0.0) for size in sequence(each.get("bytes"))]
        at = number(each.get("at"))
        if at is not None and len(sizes) == len(names):
            rows.append((min(1.0, max(0.0, at)), sizes))
    most = max((sum(sizes) for _, sizes in rows), default=0.0)
    if len(rows) < 2 or most <= 0:
        return ""
    height = 240
    unit, name = next(((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if most >= u), (1, "B"))
    ticks = [tick for tick in svg.linear_ticks(0, most / unit) if tick >= 0]
    x, y = (
        svg.Scale(0, 1, 66, width - 4, log=False),
        svg.Scale(0, max(ticks[-1], most / unit), height - 12, 8, log=False),
    )
    drawn = []
    for tick in ticks:
        drawn.append(svg.line(66, y.at(tick), width - 4, y.at(tick), "grid"))
        drawn.append(svg.text(60, y.at(tick) + 4, f"{tick:g} {name}", "tick", "end"))
    below = [0.0] * len(rows)
    for place, category in enumerate(names):
        above = [under + sizes[place] / unit for under, (_, sizes) in zip(below, rows, strict=True)]
        if max(sizes[place] for _, sizes in rows) > 0:
            edge = _steps(x, y, [at for at, _ in rows], above) + _steps(x, y, [at for at, _ in rows], below)[::-1]
            style = category.replace(" ", "-")
            drawn.append(
                f'<polygon class="part memory-{escape(style, quote=True)}" points="{svg.points(edge)}">'
                f"<title>{escape(category)}</title></polygon>"
            )
        below = above
    said = f"at most {most / unit:.3g} {name}"
    return svg.drawing(width, height, "Memory over the step, by what is in it", said, drawn)


def _steps(x: svg.Scale, y: svg.Scale, times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Memory stays as it is until it changes."""
    found = []
    for place, (at, value) in enumerate(zip(times, values, strict=True)):
        until = times[place + 1] if place + 1 < len(times) else 1.0
        found += [(x.at(at), y.at(value)), (x.at(until), y.at(value))]
    return found
