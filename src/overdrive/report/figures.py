"""Words for absolute numbers: a side's figures, devices side by side, the time of an item of the data."""

from __future__ import annotations

from overdrive.core.call_sizes import first_of
from overdrive.core.facts import ITEM_PARTS
from overdrive.core.interval import Interval
from overdrive.core.objective import size
from overdrive.core.tune_result import Figures, Loader, TuneResult
from overdrive.core.units import count, duration

SIZES_HEAD = ("calls are given", "calls", "of all")
_LONGEST = 1e6  # seconds that an item may take: more is a broken clock
_PERCENTILES = ("half of the calls take (p50)", "99 of 100 take at most (p99)")
DEVICES_HEAD = ("the same script on", "samples per second", "time per step", "setup", "peak memory")


def before_after(result: TuneResult) -> list[tuple[str, str, str]]:
    """Name, before and after of the absolute numbers; "" where one is missing."""
    rows = zip(figure_names(result.unit), figures(result.baseline), figures(result.tuned), strict=True)
    of_calls = zip(_PERCENTILES, _percentiles(result.baseline), _percentiles(result.tuned), strict=True)
    return [(name, before, after) for name, before, after in (*rows, *of_calls) if before or after]


def devices(result: TuneResult) -> list[tuple[str, ...]]:
    """A row of cells for each device (see `DEVICES_HEAD`); [] where not both were measured."""
    rows = [(each.device, *(cell or "-" for cell in figures(each))) for each in result.devices if each.seconds_per_step]
    return rows if len(rows) > 1 else []


def sizes(result: TuneResult, most: int) -> list[tuple[str, ...]]:
    """What calls were given, how many, and their share; [] where all were given the same, or that is not known."""
    rows = first_of(result.call_sizes, most)
    total = sum(calls for _, calls in rows)
    return [(given, f"{calls:,}", f"{calls / total:.1%}") for given, calls in rows] if len(rows) > 1 and total else []


def one_size(result: TuneResult) -> str:
    """A sentence where all calls are given the same; "" where not."""
    return f"Each call is given {result.call_sizes[0].given}." if len(result.call_sizes) == 1 else ""


def figure_names(step: str) -> tuple[str, ...]:
    """Of the numbers of `figures`. `step`: what one is called."""
    return ("samples per second", f"time per {step}", f"setup, before the first {step}", "memory at the peak")


def figures(side: Figures | None) -> tuple[str, ...]:
    """As text, in the order of `figure_names`; "" where one is not known."""
    if side is None:
        return ("",) * 4
    return (
        count(side.samples_per_s) if side.samples_per_s else "",
        duration(side.seconds_per_step) if side.seconds_per_step else "",
        duration(side.setup_seconds) if side.setup_seconds else "",
        size(int(side.peak_memory)) if side.peak_memory else "",
    )


def item_times(loader: Loader) -> tuple[list[tuple[str, float]], float | None]:
    """(part, seconds) of making one item, empty where that is not known, and the seconds waited for it."""
    data = loader.seconds_per_item
    known = [(part, data[part]) for part in ITEM_PARTS if 0 < data.get(part, 0.0) < _LONGEST]
    return known, data["wait"] if 0 < data.get("wait", 0.0) < _LONGEST else None


def _percentiles(side: Figures | None) -> tuple[str, str]:
    half, most = (side.half, side.most) if side else (None, None)
    return _between(half), _between(most)


def _between(seconds: Interval | None) -> str:
    """`12.3 ms [11.9, 13.1]`, in the unit of the estimate; "" where it is not known, or no time."""
    if seconds is None or not 0 < seconds.low <= seconds.estimate <= seconds.high < _LONGEST:
        return ""
    number, unit = duration(seconds.estimate).rsplit(" ", 1)
    try:
        scale = float(number) / seconds.estimate
    except ValueError:  # minutes and seconds
        return duration(seconds.estimate)
    return f"{number} {unit} [{scale * seconds.low:.3g}, {scale * seconds.high:.3g}]"


def items(result: TuneResult) -> str:
    """A sentence on the time of an item in the loader that is waited for most; "" if not known."""
    times = [item_times(loader) for loader in result.loaders]
    parts, waited = max(times, key=lambda each: each[1] or 0.0, default=([], None))
    if not parts:
        return ""
    whole = sum(seconds for _, seconds in parts)
    shares = ", ".join(f"{part} {seconds / whole:.0%}" for part, seconds in parts)
    wait = f"; the loop waited {duration(waited)} for it" if waited is not None else ""
    return f"An item of the data takes one process {duration(whole)} to make: {shares}{wait}."
