"""A profile in words: the rows of its tables, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overdrive.insight.profile.drawings import milliseconds
from overdrive.report.reading import mapping, mappings, number, positive, sequence, word

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
_WITHIN = {"graph": "in the train function", "between": "outside the model"}
OPERATOR_HEAD = (
    "operator",
    "phase",
    "time",
    "of step",
    "of roof",
    "bound by",
    "library",
    "calls",
    "FLOP/byte",
    "speed",
)
MODULE_HEAD = ("module", "forward", "backward", "of step", "of roof", "bound by", "longest operator", "FLOP/byte")


def sentence(result: Mapping[str, Any]) -> str:
    return word(mapping(result.get("bottleneck")).get("sentence"), 1000)


def step_seconds(result: Mapping[str, Any]) -> float:
    return positive(result.get("step_seconds")) or 0.0


def parts(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The parts above zero, in their order."""
    found = mapping(result.get("parts"))
    return [(name, seconds) for name in PART_NAMES if (seconds := positive(found.get(name)))]


def part_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Name, time, share of the step, and what it consists of."""
    known = parts(result)
    whole = sum(seconds for _, seconds in known) or 1.0
    python = {_WITHIN.get(name, name): s for name, s in mapping(result.get("python_by_phase")).items()}
    inside = {"data": _inside(result.get("data")), "python": _inside(python)}
    rows = [(PART_NAMES[name], milliseconds(s), f"{s / whole:.1%}", inside.get(name, "")) for name, s in known]
    return [*rows, ("together", milliseconds(whole), "", _sum(result, whole))]


def _inside(data: object) -> str:
    found = {word(name, 40): positive(seconds) for name, seconds in mapping(data).items()}
    parts = [f"{name} {milliseconds(seconds)}" for name, seconds in found.items() if seconds]
    return ", ".join(parts)


def _sum(result: Mapping[str, Any], whole: float) -> str:
    step = step_seconds(result)
    return f"{whole / step - 1:+.1%} against the step of the untimed copy, {milliseconds(step)}" if step else ""


def operator_rows(result: Mapping[str, Any], most: int) -> list[tuple[str, ...]]:
    whole = _recorded_step(result)
    rows: list[tuple[str, ...]] = []
    for each in mappings(result.get("operators"))[:most]:
        seconds = positive(each.get("seconds")) or 0.0
        rows.append(
            (
                word(each.get("operator"), 80).removeprefix("aten::"),
                word(each.get("phase"), 40),
                milliseconds(seconds),
                f"{seconds / whole:.1%}" if whole else "",
                _of_roof(each),
                word(each.get("bound"), 20) or "–",
                word(each.get("library"), 40) or "–",
                f"{number(each.get('calls')) or 0:.3g}",
                _plain(each.get("intensity")),
                rate(positive(each.get("flops_per_second"))),
            )
        )
    return rows


def module_rows(result: Mapping[str, Any], most: int) -> list[tuple[str, ...]]:
    whole = _recorded_step(result)
    rows: list[tuple[str, ...]] = []
    for each in mappings(result.get("modules"))[:most]:
        seconds = positive(each.get("seconds")) or 0.0
        rows.append(
            (
                word(each.get("module"), 120),
                milliseconds(number(each.get("forward")) or 0.0),
                milliseconds(number(each.get("backward")) or 0.0),
                f"{seconds / whole:.1%}" if whole else "",
                _of_roof(each),
                word(each.get("bound"), 20) or "–",
                word(each.get("operator"), 80).removeprefix("aten::"),
                _plain(each.get("intensity")),
            )
        )
    return rows


def _recorded_step(result: Mapping[str, Any]) -> float:
    """Operators are timed while they are recorded; so is the step that they are compared with."""
    return positive(mapping(result.get("flame")).get("seconds")) or step_seconds(result)


def _plain(value: object) -> str:
    found = positive(value)
    return f"{found:.3g}" if found else "–"


def _of_roof(each: Mapping[str, Any]) -> str:
    share = positive(each.get("of_roof"))
    if not share:
        return "–"
    return "above" if share > 1 else f"{share:.0%}"


def rate(found: float | None) -> str:
    if not found:
        return "–"
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if found >= size:
            return f"{found / size:.3g} {name}FLOP/s"
    return f"{found:.3g} FLOP/s"


def read_rows(result: Mapping[str, Any], most: int) -> list[tuple[str, ...]]:
    """Rows of the places where the program reads tensors back: place, call, times a step, cost a step."""
    return [
        (
            f"{word(each.get('file'), 400).rsplit('/', 1)[-1]}:{number(each.get('line')) or 0:.0f}",
            word(each.get("call"), 40),
            f"{number(each.get('calls')) or 0:.3g}",
            milliseconds(number(each.get("seconds")) or 0.0),
        )
        for each in mappings(result.get("reads"))[:most]
    ]


def advice(result: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "kind": word(each.get("kind"), 80),
            "place": f"{word(each.get('file'), 400)}:{number(each.get('line')) or 0:.0f}",
            "source": word(each.get("source"), 200),
            "seen": word(each.get("seen"), 600),
            "edit": word(each.get("edit"), 600),
        }
        for each in mappings(result.get("advice"))
    ]


def _sum_of_parts(off: float) -> str:
    if abs(off) < 0.0005:
        return "their sum is the step's time"
    return f"their sum is {abs(off):.1%} {'more' if off > 0 else 'less'} than the step's time"


def notes(result: Mapping[str, Any]) -> list[str]:
    """How it was measured, what that cost, and what is missing."""
    overhead = mapping(result.get("overhead"))
    recorded = mapping(overhead.get("recorded"))
    steps = mapping(overhead.get("steps"))
    found = [
        f"Step and parts over {number(result.get('steps')) or 0:,.0f} steps each, "
        f"{number(overhead.get('pairs')) or 0:.0f} pairs of blocks in turns"
        + (
            f" ({dropped:.0f} disturbed from outside and left out)"
            if (dropped := positive(overhead.get("dropped")))
            else ""
        )
        + f"; timing the parts costs {number(overhead.get('timed')) or 0:+.1%} "
        f"(± {number(overhead.get('error')) or 0:.1%}), which is taken off them as far as looks at the "
        f"clock explain it; {_sum_of_parts(number(result.get('parts_off')) or 0)}."
    ]
    lines = [
        f"{name} {number(recorded.get(what)) or 0:+.0%} ({number(steps.get(what)) or 0:.0f} steps)"
        for what, name in (("operators", "operators"), ("lines", "lines"), ("trace", "trace and memory"))
        if what in recorded and what not in mapping(result.get("left_out"))
    ]
    if lines:
        found.append(f"Recorded in steps of their own, which were slower: {', '.join(lines)}.")
    if positive(result.get("workers")) and mapping(result.get("data")):
        found.append("Data workers make items ahead: the wait is shared out as the making of an item is.")
    found += [f"A loader was not taken apart: {word(each, 300)}." for each in sequence(result.get("loaders_not_split"))]
    if reason := word(result.get("roof_missing"), 300):
        found.append(f"No roofline: {reason.rstrip('.')}.")
    found += _roof_too_low(result)
    if uncounted := ", ".join(word(each, 60) for each in sequence(result.get("uncounted"))):
        found.append(f"No formula counts the operations of {uncounted}.")
    found += [
        f"Not recorded, {word(what, 40)}: {word(why, 300)}." for what, why in mapping(result.get("left_out")).items()
    ]
    return found


def _roof_too_low(result: Mapping[str, Any]) -> list[str]:
    """Bytes may come from a cache; operations cannot be made faster than at the peak."""
    busy = positive(mapping(result.get("roof")).get("busy_share")) or 0.0
    beyond = any(
        each.get("bound") == "arithmetic" and (positive(each.get("of_roof")) or 0.0) > _BEYOND
        for each in (*mappings(result.get("operators")), *mappings(result.get("modules")))
    )
    if not beyond and busy < _BUSY:
        return []
    why = f" while others used {busy:.0%} of the cores" if busy >= _BUSY else ""
    seen = ", as operators above its arithmetic show" if beyond else ""
    return [f"The roof was measured too low{why}{seen}: `overdrive doctor --fresh`, when nothing else runs."]


def memory_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows of memory at the peak, or between steps where no more is known."""
    memory = mapping(result.get("memory"))
    most = mapping(memory.get("most"))
    known = mapping(memory.get("peak")) or {
        **mapping(memory.get("standing")),
        word(most.get("name"), 40): most.get("bytes"),
    }
    return [(word(name, 40), size(positive(amount) or 0.0)) for name, amount in known.items() if positive(amount)]


def memory_head(result: Mapping[str, Any]) -> str:
    return "memory at the peak" if mapping(mapping(result.get("memory")).get("peak")) else "memory"


def size(amount: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if amount >= unit:
            return f"{amount / unit:.3g} {name}"
    return f"{amount:.0f} B"
