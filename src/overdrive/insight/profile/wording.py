"""A profile in words: the rows of its tables, for the terminal and the page alike. It is taken as `harmless`."""

from __future__ import annotations

from collections.abc import Mapping

from overdrive.core.units import milliseconds, several
from overdrive.core.units import rate as rate_in
from overdrive.insight.profile.operators import ProfileRow
from overdrive.insight.profile.record import Profile

PART_NAMES = {
    "data": "waiting for data",
    "copy": "copy to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "graph": "train function, not told apart",
    "operators": "other operators",
    "synchronisation": "synchronisation",
    "python": "Python, launching",
    "watching": "Overdrive's own watching",
    "between": "outside the model",
}
_BEYOND = 1.1  # of the peak; less is within what measuring it again gives
_BUSY = 0.1
_RECORDED = {"operators": "operators", "lines": "lines", "trace": "trace and memory"}
_WITHIN = {"graph": "in the train function", "between": "outside the model"}


def operator_head(profile: Profile) -> tuple[str, ...]:
    of = f"of {profile.unit}"
    return "operator", "phase", "time", of, "of roof", "bound by", "library", "calls", "FLOP/byte", "speed"


def _module_times(profile: Profile, most: int) -> tuple[str, ...]:
    """Evaluation only where one of these modules is called so: an agent that acts, say."""
    if profile.inference:
        return ("forward",)
    evaluated = any(each.evaluation for each in profile.modules[:most])
    return ("forward", "backward", "evaluation") if evaluated else ("forward", "backward")


def module_head(profile: Profile, most: int) -> tuple[str, ...]:
    return (
        "module",
        *_module_times(profile, most),
        f"of {profile.unit}",
        "of roof",
        "bound by",
        "longest operator",
        "FLOP/byte",
    )


def parts(profile: Profile) -> list[tuple[str, float]]:
    """The parts above zero, in their order."""
    return [(name, seconds) for name in PART_NAMES if (seconds := profile.parts.get(name, 0.0)) > 0]


def part_rows(profile: Profile) -> list[tuple[str, str, str, str]]:
    """Name, time, share of the step, and what it consists of."""
    known = parts(profile)
    whole = sum(seconds for _, seconds in known) or 1.0
    python = {_WITHIN.get(name, name): seconds for name, seconds in profile.python_by_phase.items()}
    inside = {"data": _inside(profile.data), "python": _inside(python)}
    rows = [(PART_NAMES[name], milliseconds(s), f"{s / whole:.1%}", inside.get(name, "")) for name, s in known]
    return [*rows, ("together", milliseconds(whole), "", _sum(profile, whole))]


def _inside(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in found.items() if seconds > 0)


def _sum(profile: Profile, whole: float) -> str:
    step = profile.step_seconds
    untimed = f"against the {profile.unit} of the untimed copy, {milliseconds(step)}"
    return f"{whole / step - 1:+.1%} {untimed}" if step > 0 else ""


def operator_rows(profile: Profile, most: int) -> list[tuple[str, ...]]:
    return [
        (
            each.operator.removeprefix("aten::"),
            each.phase,
            milliseconds(each.seconds),
            _of_step(each, profile),
            _of_roof(each),
            each.bound or "–",
            each.library or "–",
            f"{each.calls:.3g}",
            _intensity(each),
            rate(each.flops_per_second),
        )
        for each in profile.operators[:most]
    ]


def module_rows(profile: Profile, most: int) -> list[tuple[str, ...]]:
    return [
        (
            each.module,
            *(milliseconds(getattr(each, phase)) for phase in _module_times(profile, most)),
            _of_step(each, profile),
            _of_roof(each),
            each.bound or "–",
            each.operator.removeprefix("aten::"),
            _intensity(each),
        )
        for each in profile.modules[:most]
    ]


def _of_step(row: ProfileRow, profile: Profile) -> str:
    """Operators are timed while they are recorded; so is the step that they are compared with."""
    whole = profile.flame.seconds or profile.step_seconds
    return f"{row.seconds / whole:.1%}" if whole > 0 else ""


def _intensity(row: ProfileRow) -> str:
    return f"{row.intensity:.3g}" if row.intensity else "–"


def _of_roof(row: ProfileRow) -> str:
    if not row.of_roof:
        return "–"
    return "above" if row.of_roof > 1 else f"{row.of_roof:.0%}"


def rate(found: float | None) -> str:
    return rate_in(found, "FLOP/s") if found else "–"


def read_rows(profile: Profile, most: int) -> list[tuple[str, ...]]:
    """Rows of the places where the program reads tensors back: place, call, times a step, cost a step."""
    return [
        (f"{each.file.rsplit('/', 1)[-1]}:{each.line}", each.call, f"{each.calls:.3g}", milliseconds(each.seconds))
        for each in profile.reads[:most]
    ]


def _sum_of_parts(off: float, unit: str) -> str:
    if abs(off) < 0.0005:
        return f"their sum is the {unit}'s time"
    return f"their sum is {abs(off):.1%} {'more' if off > 0 else 'less'} than the {unit}'s time"


def notes(profile: Profile) -> list[str]:
    """How it was measured, what that cost, and what is missing."""
    overhead, unit = profile.overhead, profile.unit
    dropped = f" ({overhead.dropped} disturbed from outside and left out)" if overhead.dropped > 0 else ""
    # As `standard_error` says it of a single pair, and of pairs that are each of other processes.
    sure = f"± {overhead.error:.1%}" if overhead.error < 1 else "how sure that is, is not known"
    found = [
        f"{unit.capitalize()} and parts over {several(profile.steps, unit)} each, "
        f"{several(overhead.pairs, 'pair')} of blocks in turns{dropped}; "
        f"timing the parts costs {overhead.timed:+.1%} ({sure}), which is taken off them as far as "
        f"looks at the clock explain it; {_sum_of_parts(profile.parts_off, unit)}."
    ]
    lines = [
        f"{name} {overhead.recorded[what]:+.0%} ({several(round(overhead.steps.get(what, 0)), unit)})"
        for what, name in _RECORDED.items()
        if what in overhead.recorded and what not in profile.left_out
    ]
    if lines:
        slower = all(overhead.recorded[what] >= 0 for what in _RECORDED if what in overhead.recorded)
        # On a busy machine the steps that it is compared with may have been the slower ones.
        which = "were slower" if slower else "took another time"
        found.append(f"Recorded in {unit}s of their own, which {which}: {', '.join(lines)}.")
    if profile.workers > 0 and profile.data:
        found.append("Data workers make items ahead: the wait is shared out as the making of an item is.")
    found += [f"A loader was not taken apart: {each}." for each in profile.loaders_not_split]
    if profile.roof_missing:
        found.append(f"No roofline: {profile.roof_missing.rstrip('.')}.")
    found += _roof_too_low(profile)
    if profile.uncounted:
        found.append(f"No formula counts the operations of {', '.join(profile.uncounted)}.")
    return found + [f"Not recorded, {what}: {why}." for what, why in profile.left_out.items()]


def _roof_too_low(profile: Profile) -> list[str]:
    """Bytes may come from a cache; operations cannot be made faster than at the peak."""
    busy = profile.roof.busy_share if profile.roof else 0.0
    rows: tuple[ProfileRow, ...] = (*profile.operators, *profile.modules)
    most = _BEYOND * (profile.roof.headroom if profile.roof else 1.0)
    beyond = any(each.bound == "arithmetic" and (each.of_roof or 0.0) > most for each in rows)
    if not beyond and busy < _BUSY:
        return []
    why = f" while others used {busy:.0%} of the cores" if busy >= _BUSY else ""
    seen = ", as operators above its arithmetic show" if beyond else ""
    return [f"The roof was measured too low{why}{seen}: `overdrive doctor --fresh`, when nothing else runs."]


def memory_rows(profile: Profile) -> list[tuple[str, ...]]:
    """Rows of memory at the peak, or between steps where no more is known."""
    memory, most = profile.memory, profile.memory.most
    known = memory.peak or {**memory.standing, most.name: most.bytes or 0.0}
    return [(name, size(amount)) for name, amount in known.items() if amount > 0]


def memory_head(profile: Profile) -> str:
    return "memory at the peak" if profile.memory.peak else "memory"


def size(amount: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if amount >= unit:
            number = f"{amount / unit:.3g}" if amount < 999.5 * unit else f"{amount / unit:,.0f}"  # up to 1,023
            return f"{number} {name}"
    return f"{amount:.0f} B"
