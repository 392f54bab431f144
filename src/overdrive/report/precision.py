"""The precision table of a result: a row of words for each number format."""

from __future__ import annotations

from dataclasses import dataclass

from overdrive.core.tune_result import Precision, TuneResult


@dataclass(frozen=True)
class FormatRow:
    """One number format, by one technique or as the program has it. `measured`: there is more than a reason why not."""

    name: str
    by: str
    measured: bool
    speed: str
    memory: str
    error: str
    learns: str
    detail: str


def precision(result: TuneResult) -> list[FormatRow]:
    """All rows, or none where no number format but the program's own was measured."""
    rows = [_row(each) for each in result.precision]
    return rows if any(row.by and row.measured for row in rows) else []


def _row(each: Precision) -> FormatRow:
    own = not each.technique and each.seconds_per_step is not None
    against = each.against.removeprefix("plain").removeprefix(" + ")
    speed = each.speedup.as_speedup() if each.speedup else ""
    learns = {True: "yes", False: "not shown", None: "not checked"}[each.learns]
    return FormatRow(
        each.format or "-",
        each.technique,
        own or bool(speed),
        "as it is" if own else f"{speed}, added to {against}" if speed and against else speed or "-",
        f"{each.peak_memory / 2**20:,.0f} MiB" if each.peak_memory else "-",
        "-" if each.error is None or each.error < 0 else f"{each.error:.1e}" if each.error else "0",
        "as it is" if own else learns if speed else "-",
        each.told,
    )
