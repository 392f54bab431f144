"""The profile's own drawings: flame graph, roofline, memory over the step. Inline SVG, no script, all text escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from overdrive.core.units import milliseconds, rate
from overdrive.insight.profile.operators import OperatorRow, Roof
from overdrive.insight.profile.record import FlameNode, MemoryProfile
from overdrive.insight.profile.wording import size
from overdrive.report import svg

_ROW = 19  # pixels of one level of the flame graph
_LEAST = 0.6  # pixels; what is narrower is not drawn
_DEEPEST = 14
_PHASES = ("data", "copy", "forward", "backward", "optimizer", "evaluation", "synchronisation", "python")
_LEAST_OPERATOR = 0.002  # of all operators' time; tiny ones are slow at anything, and would squeeze the others together
_AXIS = 84  # pixels left of the roofline: "100 GFLOP/s"
_MOST_NAMED = 6  # points of the roofline with their name beside them


def flame(tree: FlameNode, width: int) -> str:
    """A step from the top down: phases, modules, operators; as wide as they take long."""
    whole = tree.seconds
    if whole <= 0:
        return ""
    drawn: list[str] = []
    deepest = _draw_flame(tree, 0.0, 0, width / whole, "between", drawn)
    said = ", ".join(f"{each.name} {each.seconds / whole:.0%}" for each in tree.children[:8])
    return svg.drawing(width, (deepest + 1) * _ROW + 2, "Flame graph", said, drawn)


def _draw_flame(node: FlameNode, left: float, level: int, scale: float, phase: str, drawn: list[str]) -> int:
    across = node.seconds * scale
    name = node.name
    style = phase if level else "whole"
    drawn.append(
        svg.rect(
            left, level * _ROW, across - 0.5, _ROW - 1, f"part {style}", 0, f"{name}: {milliseconds(node.seconds)}"
        )
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
        for child in node.children:
            wide = child.seconds * scale
            if wide >= _LEAST:
                kind = child.name if level == 0 else phase
                kind = kind if kind in _PHASES else "between"
                deepest = max(deepest, _draw_flame(child, left, level + 1, scale, kind, drawn))
            left += wide
    return deepest


def roofline(operators: Sequence[OperatorRow], roof: Roof, width: int) -> str:
    """Operations a second over operations a byte, both on log axes, under what the machine was measured to do."""
    flops, moved, cached = roof.flops, roof.bytes, roof.cache_bytes
    least = _LEAST_OPERATOR * sum(each.seconds for each in operators)
    points = [
        (each.intensity, each.flops_per_second, each)
        for each in sorted(operators, key=lambda one: -one.seconds)
        if each.intensity and each.flops_per_second and each.seconds >= max(least, 0.0)
    ]
    if flops <= 0 or moved <= 0 or not points:
        return ""
    ridge = flops / moved
    across = [each[0] for each in points] + [ridge * 4, ridge / 16]
    up = [each[1] for each in points] + [flops * 1.6]
    x = svg.Scale(min(across) / 1.5, max(across) * 1.5, _AXIS, width - 8)
    height = 360 if width > svg.NARROW_BELOW else 300
    y = svg.Scale(10 ** math.floor(math.log10(min(up))), max(up), height - 44, 12)
    drawn = [svg.line(x.at(decade), 12, x.at(decade), height - 44, "grid") for decade in _tens(x)]
    for decade in _tens(x):
        drawn.append(svg.text(x.at(decade), height - 26, f"{decade:g}", "tick", "middle"))
    for decade in _tens(y):
        drawn.append(svg.line(_AXIS, y.at(decade), width - 8, y.at(decade), "grid"))
        drawn.append(svg.text(_AXIS - 6, y.at(decade) + 4, rate(decade, "FLOP/s"), "tick", "end"))
    drawn.append(svg.text(width - 8, height - 8, "operations per byte", "tick", "end"))
    drawn += _roof_line(x, y, flops, cached, "roof cache") if cached > 0 else []
    drawn += _roof_line(x, y, flops, moved, "roof")
    longest = points[0][2].seconds
    taken: list[tuple[float, float]] = []
    for place, (intensity, speed, each) in enumerate(points):
        here = x.at(intensity), y.at(speed)
        radius = 3 + 7 * math.sqrt(each.seconds / longest) if longest else 3
        name = each.operator.removeprefix("aten::")
        title = escape(f"{name} ({each.phase}): {milliseconds(each.seconds)}")
        kind = each.phase if each.phase in _PHASES else "between"
        drawn.append(
            f'<circle cx="{here[0]:.1f}" cy="{here[1]:.1f}" r="{radius:.1f}" class="part point {kind}">'
            f"<title>{title}</title></circle>"
        )
        if place < _MOST_NAMED and width > svg.NARROW_BELOW:
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


def memory(data: MemoryProfile, width: int) -> str:
    """What fills the memory over some steps, stacked by category."""
    names = data.categories
    rows = [
        (min(1.0, max(0.0, each.at)), [max(0.0, size) for size in each.bytes])
        for each in data.curve
        if len(each.bytes) == len(names)
    ]
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
    said = f"at most {size(most)}"
    return svg.drawing(width, height, "Memory over time, by what is in it", said, drawn)


def _steps(x: svg.Scale, y: svg.Scale, times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Memory stays as it is until it changes."""
    found = []
    for place, (at, value) in enumerate(zip(times, values, strict=True)):
        until = times[place + 1] if place + 1 < len(times) else 1.0
        found += [(x.at(at), y.at(value)), (x.at(until), y.at(value))]
    return found
