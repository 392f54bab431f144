"""Draws the charts of sameness: errors against fp64, and the results of both arms of seeds."""

from __future__ import annotations

from collections.abc import Sequence

from overdrive.report import svg


def errors(rows: Sequence[svg.ChartRow], allowed: Sequence[float | None], width: int = svg.WIDE) -> str:
    """Errors of the tuned program as multiples of the original's own, with a line at what each is allowed."""
    if not rows:
        return ""
    frame = svg.ChartFrame(width, len(rows), [1.0, *(limit for limit in allowed if limit), *svg.ends_of(rows)])
    drawn = frame.axis()
    for index, (row, limit) in enumerate(zip(rows, allowed, strict=True)):
        if limit:
            x, y = frame.scale.at(limit), frame.middle(index)
            drawn.append(svg.line(x, y - 11, x, y + 11, "limit"))
        drawn += frame.marks(index, row)
    said = "; ".join(f"{row.name} {row.under} {row.label}" for row in rows)
    return svg.drawing(width, frame.height, "Rounding errors as multiples of the original's own", said, drawn)


def arms(rows: Sequence[svg.ChartRow], within: tuple[float, float] | None, width: int = svg.WIDE) -> str:
    """Results of both arms of seeds as dots, and their difference, over the band that the margin allows."""
    if not rows:
        return ""
    frame = svg.ChartFrame(width, len(rows), [*(within or ()), *svg.ends_of(rows)], factors=False)
    drawn = frame.axis()
    if within:
        drawn = frame.band(*within, "margin") + drawn
        for end in within:
            drawn += frame.upright(frame.scale.at(end), "limit")
    for index, row in enumerate(rows):
        drawn += frame.marks(index, row)
    said = "; ".join(f"{row.name} {row.label}" for row in rows)
    return svg.drawing(width, frame.height, "Results of both arms, and the margin", said, drawn)
