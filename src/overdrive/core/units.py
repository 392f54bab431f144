"""Numbers in the units that people use, and what a step is called: a program that trains nothing makes calls."""

from __future__ import annotations

from collections.abc import Sequence

_MOST = 6  # names in a sentence


def count(value: float) -> str:
    """A number for people: 12,740 or 24.5 or 0.0262."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def several(number: int, one: str, more: str = "") -> str:
    """ "1 process", "12 processes": `more` is the plural, which else has an s."""
    return f"1 {one}" if number == 1 else f"{number:,} {more or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def listed_some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return listed(names if len(names) <= _MOST else [*names[:_MOST], f"{len(names) - _MOST:,} more"])


def duration(seconds: float) -> str:
    """Seconds in the units that people use."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def milliseconds(seconds: float) -> str:
    """Of parts of a step, beside each other; less than a tenth of one is in microseconds."""
    if abs(seconds) < 0.9995e-4:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) < 0.9995 else f"{seconds * 1e3:,.0f} ms"


def clock(seconds: float) -> str:
    """Time since a start, or until an end, as it is shown beside what goes on: `0:43`, `12:05`, `1:02:05`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def rate(value: float, unit: str) -> str:
    """ "1.2 TFLOP/s", "24 GB/s", "5.3 µs": three figures."""
    if unit == "s" and value < 1:
        for size, name in ((1e-3, "ms"), (1e-6, "µs")):
            if value >= size * 0.9995:
                return f"{value / size:.3g} {name}"
        return f"{value / 1e-9:.3g} ns"
    if unit in ("FLOP/s", "OP/s", "B/s"):
        for size, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= size * 0.9995:
                return f"{value / size:.3g} {name}{unit}"
    return f"{count(value)} {unit}"


def noise_told(share: float) -> str:
    """ "1.2%": by how much a program seemed faster or slower than itself; above twice it is no number to read."""
    return "over 100%" if abs(share) > 1 else f"{abs(share):.1%}"


def unit_of(inference: bool) -> str:
    return "call" if inference else "step"


def whole_unit_of(inference: bool) -> str:
    return "call of the model" if inference else "training step"


def whole_units_of(number: int, inference: bool) -> str:
    """ "1 training step", "12 calls of the model"."""
    return several(number, whole_unit_of(inference), "calls of the model" if inference else "")
