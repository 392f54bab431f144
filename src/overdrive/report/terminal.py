"""Says what a tune found in words: plain strings that every report uses, and the table in the terminal.

A result may come from a file that someone else wrote, and any part of it may be missing. So nothing here
trusts it: text passes through `word`, numbers through `number`, speed-ups through `interval`.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from overdrive.contract import Contract

VERDICTS = ("FASTER", "SAME", "SLOWER", "INCONCLUSIVE")
PLAIN_WIDTH = 100  # columns, where the output is no terminal
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]?"
)
# Cc controls, Cf invisible formatting (right-to-left overrides too), Cs lone surrogates, Zl and Zp separators
_INERT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


# --- Reading what may be missing, broken or hostile ---


def word(value: object, limit: int = 400) -> str:
    """Any value as one line of harmless text: no escapes or control characters, cut at `limit` characters."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _ESCAPES.sub("", str(value))
    text = "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c) not in _INERT)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def positive(value: object) -> float | None:
    """A finite number above zero, or None."""
    found = number(value)
    return found if found is not None and found > 0 else None


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list; whatever else is in it is left out."""
    return [item for item in sequence(value) if isinstance(item, Mapping)]


@dataclass(frozen=True)
class Interval:
    """A speed-up with its 95 % interval; 1 is the speed of what it was compared with."""

    low: float
    estimate: float
    high: float

    def words(self) -> tuple[str, str, str]:
        """Low, estimate and high as text, rounded outwards: the interval is never shown too narrow."""
        values = (self.low, self.estimate, self.high)
        places = 2 if self.low < 2 else 1 if self.low < 100 else 0
        if any(value != 1 and round(value, places) == 1 for value in values):
            places = 3
        ways = (ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_CEILING)
        step = Decimal(1).scaleb(-places)
        low, estimate, high = (f"{Decimal(repr(v)).quantize(step, w):,}" for v, w in zip(values, ways, strict=True))
        return low, estimate, high

    def __str__(self) -> str:
        low, estimate, high = self.words()
        return f"{estimate}x [{low}, {high}]"


def interval(value: object) -> Interval | None:
    """A speed-up as an Interval; None where one of its numbers is missing, impossible or out of order."""
    data = mapping(value)
    low, estimate, high = (positive(data.get(key)) for key in ("low", "estimate", "high"))
    if low is None or estimate is None or high is None or not 1e-6 < low <= estimate <= high < 1e6:
        return None
    return Interval(low, estimate, high)


def verdict(result: Mapping[str, Any]) -> str:
    """The verdict that the numbers carry: a claim whose interval is missing or holds 1 is INCONCLUSIVE."""
    said = word(result.get("verdict")).upper()
    measured = interval(result.get("speedup"))
    if said == "FASTER" and (measured is None or measured.low <= 1):
        return "INCONCLUSIVE"
    if said == "SLOWER" and (measured is None or measured.high >= 1):
        return "INCONCLUSIVE"
    return said if said in VERDICTS else "INCONCLUSIVE"


def contract(result: Mapping[str, Any]) -> Contract | None:
    """The loosest contract among what was adopted, or the one asked for; None where that is not known."""
    techniques = mappings(result.get("techniques"))
    said = [item.get("contract") for item in techniques] or [result.get("contract")]
    try:
        return max((Contract(word(name)) for name in said), key=lambda level: level.rank)
    except ValueError:
        return None


# --- Words ---


def count(value: float) -> str:
    """A number for people: 12,740 or 24.5 or 0.0262."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def settings(value: object) -> str:
    return ", ".join(f"{word(key, 60)}={word(item, 120)}" for key, item in mapping(value).items())


def command(result: Mapping[str, Any]) -> list[str]:
    """The command that runs the program under its plan, as quoted words; empty where no plan is named."""
    plan, program = word(result.get("plan"), 10_000), word(result.get("program"), 100_000)
    if not plan or not program:
        return []
    try:
        words = shlex.split(program)
    except ValueError:  # an unclosed quote
        words = program.split()
    return [shlex.quote(part) for part in ("overdrive", "run", "--plan", plan, *words)]


def headline(result: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict as one sentence, in two parts: the claim, and what limits it."""
    measured = interval(result.get("speedup"))
    low, estimate, high = measured.words() if measured else ("", "", "")
    within = f"(between {low} and {high}, 95 % interval)"
    found = verdict(result)
    if found == "FASTER":
        return f"Trains {estimate} times as fast", f"{within}, {_kept(result)}."
    if found == "SLOWER":
        return (
            f"Runs only {estimate} times as fast",
            f"{within}: the plan is not used and nothing is changed.",
        )
    if found == "SAME":
        between = f" {within}" if measured else ""
        return (
            "Trains as fast as before",
            f"{between}: nothing faster was found and nothing is changed.".strip(),
        )
    possible = f": the speed-up may lie anywhere between {low} and {high} (95 % interval)" if measured else ""
    return "Nothing was established", f"{possible}, and nothing is changed.".strip()


def sentence(result: Mapping[str, Any]) -> str:
    """The verdict as one sentence."""
    return join(*headline(result))


def join(claim: str, rest: str) -> str:
    return claim + rest if rest[:1] in ",:" else f"{claim} {rest}"


def _kept(result: Mapping[str, Any]) -> str:
    """What stayed the same, as far as it was checked."""
    level = contract(result)
    if level is Contract.OPEN:
        return "but by changing the training itself, as was asked for: what it learns may differ"
    if level is None:
        return "but what stayed the same is not recorded"
    same = "with the same samples, steps and learning rates"
    techniques = mappings(result.get("techniques"))
    if not techniques or not all(word(item.get("check")) for item in techniques):
        return f"{same}; no check of the result is recorded for all that was adopted"
    steps = checked_steps(result)
    over = f" over {steps:,} steps" if steps else ""
    proxy = " (a proxy, not a proof)" if result.get("proxy") is not False else ""
    if level is Contract.EXACT:
        return f"{same}; {_identical(result)}"
    if level is Contract.ROUNDING:
        return f"{same}; the rounding errors stay within the program's own{over}{proxy}"
    return f"{same}; the result stays within the noise of the seed{over}{proxy}"


def _identical(result: Mapping[str, Any]) -> str:
    """What the recorded losses say about a plan that must keep every bit."""
    curves = mapping(result.get("losses"))
    before, after = list(sequence(curves.get("baseline"))), list(sequence(curves.get("tuned")))
    if not before or not after:
        return "each technique passed its check of being identical bit for bit"
    if before != after:
        return "but the recorded losses differ, which the contract does not allow"
    return f"the losses of all {len(before):,} steps compared are identical bit for bit"


def checked_steps(result: Mapping[str, Any]) -> int:
    """Steps over which both were compared: `steps_checked`, or the losses that both have; 0 if not known."""
    said = positive(result.get("steps_checked"))
    if said is not None:
        return int(said)
    curves = mapping(result.get("losses"))
    return min(len(sequence(curves.get("baseline"))), len(sequence(curves.get("tuned"))))


def contributions(result: Mapping[str, Any]) -> list[tuple[str, Interval]]:
    """The adopted techniques whose contribution was measured, in the order in which they were adopted."""
    measured = [(word(t.get("name"), 80), interval(t.get("speedup"))) for t in mappings(result.get("techniques"))]
    return [(name or "(no name)", found) for name, found in measured if found]


def interaction(result: Mapping[str, Any]) -> tuple[float, str] | None:
    """What the confirmed total has beyond the product of the parts, as a ratio and a sentence."""
    total, parts = interval(result.get("speedup")), contributions(result)
    if total is None or not parts:
        return None
    product = math.exp(sum(math.log(part.estimate) for _, part in parts))
    ratio = total.estimate / product
    said = f"The parts multiply to {product:.3g}x; the confirmation on fresh runs measured {total}"
    if total.low <= product <= total.high:
        return ratio, f"{said}, which agrees."
    return ratio, f"{said}: together they give {ratio:.2f} times what they promise one by one."


def sentences(result: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the verdict, one sentence each."""
    said = []
    overlap = interaction(result)
    if overlap and verdict(result) == "FASTER":
        said.append(overlap[1])
    noise = number(result.get("noise_floor"))
    if noise is not None:
        said.append(f"Noise floor: {abs(noise):.1%}, from the untouched program compared with itself.")
    tuning, even = positive(result.get("tuning_seconds")), positive(result.get("break_even_steps"))
    if tuning is not None and even is not None and verdict(result) == "FASTER":
        said.append(f"Tuning took {duration(tuning)}; it pays for itself after {math.ceil(even):,} steps.")
    elif tuning is not None:
        said.append(f"Tuning took {duration(tuning)}.")
    return said + [note for note in (word(note, 1000) for note in sequence(result.get("notes"))) if note]


def reason(item: Mapping[str, Any]) -> str:
    """Why a technique was not adopted, with what was measured."""
    why, measured = word(item.get("reason")), interval(item.get("speedup"))
    if not why:
        why = word(item.get("verdict")).lower() or "no reason recorded"
    return f"{why} ({measured})" if measured and "[" not in why else why


# --- The terminal ---


def table(result: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the numbers, what was adopted and what was not, and how to run the plan."""
    live = console.is_terminal
    width = console.width if live else min(console.width, PLAIN_WIDTH)

    def text(value: str, style: str = "") -> Text:
        encoding = console.encoding or "utf-8"  # a pipe may speak ASCII only
        return Text(value.encode(encoding, "replace").decode(encoding), style=style, overflow="fold")

    def say(value: str = "", style: str = "") -> None:
        console.print(text(value, style), width=width, overflow="fold")

    def rows(head: Sequence[str], body: Sequence[Sequence[str]], right: bool = False) -> None:
        grid = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
        for place, name in enumerate(head):
            grid.add_column(text(name), justify="right" if right and place else "left", overflow="fold")
        for row in body:
            grid.add_row(*(text(cell, "" if place else "bold") for place, cell in enumerate(row)))
        console.print(grid, width=width)
        say()

    found = verdict(result)
    program = word(result.get("program"), 2000)
    say(f"Overdrive: {program}" if program else "Overdrive", "dim")
    say()
    say(sentence(result), {"FASTER": "bold green", "SLOWER": "bold red"}.get(found, "bold"))
    say()

    numbers = before_after(result)
    if numbers:
        after = "after" if found == "FASTER" else "not adopted"
        rows(("", "before", after), [(name, a or "-", b or "-") for name, a, b in numbers], right=True)
    adopted = mappings(result.get("techniques"))
    if adopted:
        rows(
            ("adopted" if found == "FASTER" else "not adopted", "contract", "speed-up", "check"),
            [
                (
                    word(item.get("name"), 80),
                    word(item.get("contract"), 40) or "-",
                    str(interval(item.get("speedup")) or "-"),
                    word(item.get("check")) or "no check recorded",
                )
                for item in adopted
            ],
        )
    rejected = mappings(result.get("rejected"))
    if rejected:
        rows(("tried, not used", "why"), [(word(item.get("name"), 80), reason(item)) for item in rejected])
    for line in sentences(result):
        say(line)
    words = command(result) if found == "FASTER" else []
    if words:
        say()
        say("Run it:", "dim")
        if live:
            console.print(text(" ".join(words), "bold"), soft_wrap=True)  # one line, to be copied
        else:
            say("\n".join(_continued(words, width)))


def before_after(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, before and after of the absolute numbers; "" where one is missing."""
    before, after = mapping(result.get("baseline")), mapping(result.get("tuned"))
    found = []
    for name, key, write in (
        ("samples per second", "samples_per_s", count),
        ("time per step", "seconds_per_step", duration),
        ("setup, before the first step", "setup_seconds", duration),
    ):
        pair = [positive(side.get(key)) for side in (before, after)]
        if any(value is not None for value in pair):
            a, b = ("" if value is None else write(value) for value in pair)
            found.append((name, a, b))
    return found


def _continued(words: Sequence[str], width: int) -> list[str]:
    """A command over several lines, joined by backslashes so that a shell still reads it as one."""
    lines = [words[0]]
    for part in words[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append("    " + part)
        else:
            lines[-1] += " " + part
    return lines
