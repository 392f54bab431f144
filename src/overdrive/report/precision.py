"""Reads the precision table in a result: a row of words for each number format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from overdrive.report.reading import interval, mappings, number, positive, word


@dataclass(frozen=True)
class Row:
    """One number format, by one technique or as the program has it. `measured`: there is more than a reason why not."""

    name: str
    by: str
    measured: bool
    speed: str
    memory: str
    error: str
    learns: str
    detail: str


def precision(result: Mapping[str, Any]) -> list[Row]:
    """All rows, or none where no number format but the program's own was measured."""
    rows = [_row(item) for item in mappings(result.get("precision"))]
    return rows if any(row.by and row.measured for row in rows) else []


def _row(item: Mapping[str, Any]) -> Row:
    by, speedup, step = word(item.get("technique"), 80), interval(item.get("speedup")), item.get("seconds_per_step")
    own = not by and positive(step) is not None
    against = word(item.get("against")).removeprefix("plain").removeprefix(" + ")
    learns = {"True": "yes", "False": "not shown"}.get(str(item.get("learns")), "not checked")
    error, memory = number(item.get("error")), positive(item.get("peak_memory"))
    return Row(
        word(item.get("format"), 20) or "-",
        by,
        own or speedup is not None,
        "as it is" if own else f"{speedup}, added to {against}" if speedup and against else str(speedup or "-"),
        f"{memory / 2**20:,.0f} MiB" if memory else "-",
        "-" if error is None or error < 0 else f"{error:.1e}" if error else "0",
        "as it is" if own else learns if speedup else "-",
        word(item.get("told")),
    )
