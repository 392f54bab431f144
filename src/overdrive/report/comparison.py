"""Two results side by side: two machines, two versions, two states of a script. Each was measured on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Console

from overdrive.core.interval import Interval
from overdrive.core.tune_result import Figures, Kept, SideFigures, TuneResult
from overdrive.core.units import duration
from overdrive.report import charts, figures, svg, techniques, words
from overdrive.report.html import machine_rows, template
from overdrive.report.paper import Paper
from overdrive.report.plots import Plot, crossed, plot, times
from overdrive.report.reading import harmless

NUMBERS_HEAD = ("", "A", "B", "B to A")
TECHNIQUES_HEAD = ("technique", "A", "B")
OTHER_HEAD = ("what differs", "A", "B")
_NONE = "-"
_NO_INTERVAL = "Absolute figures come of two measurements, made at two times: their ratio has no interval."


@dataclass(frozen=True)
class Comparison:
    """What two results say of the same. Neither is taken for the better one to begin with."""

    a: TuneResult
    b: TuneResult

    @cached_property
    def ratio(self) -> Interval | None:
        """B's speed-up as a multiple of A's; None where one has none."""
        one, other = self.a.speedup, self.b.speedup
        return None if one is None or other is None else ratio_of(other, one)

    def headline(self) -> tuple[str, str]:
        """The claim, and what it rests on."""
        if self.ratio is None:
            missing = "neither" if not self.a.speedup and not self.b.speedup else "A" if not self.a.speedup else "B"
            has = "has a" if missing == "neither" else "has no"
            return "Nothing to compare", f": {missing} {has} speed-up that was measured."
        assert self.a.speedup and self.b.speedup
        told = f": {self.b.speedup.as_speedup()} in B against {self.a.speedup.as_speedup()} in A."
        if self.ratio.low > 1:
            return "The plan gains more in B", f"{told} That is {self.ratio.as_speedup()} times as much."
        if self.ratio.high < 1:
            return "The plan gains less in B", f"{told} That is {self.ratio.as_speedup()} times as much."
        return "The plans gain the same, as far as was measured", f"{told} The ratio is {self.ratio.as_speedup()}."

    def numbers(self) -> list[tuple[str, str, str, str]]:
        """Rows of figures; see `NUMBERS_HEAD`."""
        one, other = (each.speedup.as_speedup() if each.speedup else _NONE for each in (self.a, self.b))
        rows = [("speed-up of the plan", one, other, self.ratio.as_speedup() if self.ratio else _NONE)]
        rows += _figures("before", self.a.baseline, self.b.baseline, self.a.unit)
        rows += _figures("after", self.a.tuned, self.b.tuned, self.a.unit)
        first, second = self.a.tuning_seconds, self.b.tuning_seconds
        if first and second:
            rows.append(("tuning took", duration(first), duration(second), _of(first, second)))
        return rows

    def techniques(self) -> list[tuple[str, str, str]]:
        """Each that either measured, with what it gained; those of a plan first."""
        seen = [each.name for result in (self.a, self.b) for each in result.techniques]
        seen += [each.name for result in (self.a, self.b) for each in techniques.tried(result)]
        names = dict.fromkeys(seen)
        return [(name, *self._told(name)) for name in names]

    def _told(self, name: str) -> tuple[str, str]:
        """What became of a technique in both; its settings where they are not the same."""
        kept = [next((each for each in side.techniques if each.name == name), None) for side in (self.a, self.b)]
        one, other = kept
        differ = one is not None and other is not None and one.settings != other.settings
        texts = [
            _left_out(side, name) if each is None else _gain(side, each) + (_with(each) if differ else "")
            for side, each in zip((self.a, self.b), kept, strict=True)
        ]
        return texts[0], texts[1]

    def differences(self) -> list[tuple[str, str, str]]:
        """Conditions that are not the same in both."""
        one, other = dict(_conditions(self.a)), dict(_conditions(self.b))
        named = dict.fromkeys([*one, *other])
        rows = [(name, one.get(name, _NONE), other.get(name, _NONE)) for name in named]
        return [row for row in rows if row[1] != row[2]]

    def as_data(self, names: tuple[str, str]) -> dict[str, Any]:
        """Plain data of all of it, for JSON. `names`: the files of A and B."""
        return {
            "version": 1,
            "files": list(names),
            "verdict": words.join(*self.headline()),
            "ratio": None if self.ratio is None else vars(self.ratio),
            "numbers": [dict(zip(("name", "a", "b", "b_to_a"), row, strict=True)) for row in self.numbers()],
            "techniques": [dict(zip(("name", "a", "b"), row, strict=True)) for row in self.techniques()],
            "differences": [dict(zip(("name", "a", "b"), row, strict=True)) for row in self.differences()],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What a reader must know, one sentence each."""
        said = [f"{name}: {each.notice}" for name, each in (("A", self.a), ("B", self.b)) if each.notice]
        if self.a.program != self.b.program:
            said.append("The command lines differ: these may be two programs.")
        return [*said, _NO_INTERVAL]


def ratio_of(one: Interval, other: Interval) -> Interval:
    """`one` as a multiple of `other`, both measured independently of each other.

    The interval is Zou and Donner's (2008, MOVER) for a difference, here of logarithms: it takes both as they are,
    lopsided or not.
    """
    low, mid, high = (math.log(each) for each in (one.low, one.estimate, one.high))
    its_low, its_mid, its_high = (math.log(each) for each in (other.low, other.estimate, other.high))
    gap = mid - its_mid
    below, above = math.hypot(mid - low, its_high - its_mid), math.hypot(high - mid, its_mid - its_low)
    return Interval(math.exp(gap - below), math.exp(gap), math.exp(gap + above))


def compared(a: TuneResult, b: TuneResult) -> Comparison:
    return Comparison(harmless(a), harmless(b))


def show(found: Comparison, names: tuple[str, str], console: Console) -> None:
    """Print it. `names`: the files of A and B."""
    paper = Paper(console)
    paper.pairs([("A", names[0]), ("B", names[1])])
    paper.say()
    paper.rows(NUMBERS_HEAD, found.numbers(), right=True)
    if rows := found.techniques():
        paper.rows(TECHNIQUES_HEAD, rows)
    if rows := found.differences():
        paper.rows(OTHER_HEAD, rows)
    for note in found.notes():
        paper.say(note)
    paper.say()
    paper.say(words.join(*found.headline()), "bold")


def page(found: Comparison, names: tuple[str, str]) -> str:
    """The whole page as text, to be written as UTF-8."""
    claim, rest = found.headline()
    return template("comparison.html").render(
        title=claim,
        claim=claim,
        rest=crossed(rest.removeprefix(": ")),
        names=names,
        numbers=[tuple(map(crossed, row)) for row in found.numbers()],
        numbers_head=NUMBERS_HEAD,
        speedups=_speedups(found),
        techniques=[tuple(map(crossed, row)) for row in found.techniques()],
        techniques_head=TECHNIQUES_HEAD,
        differences=found.differences(),
        other_head=OTHER_HEAD,
        notes=found.notes(),
    )


def _speedups(found: Comparison) -> Plot | None:
    """The plans and what is in them, A above B."""
    rows: list[svg.ChartRow] = []
    shares = [dict(techniques.contributions(each)) for each in (found.a, found.b)]
    both = [("the whole plan", [found.a.speedup, found.b.speedup])]
    both += [(name, [share.get(name) for share in shares]) for name in dict.fromkeys([*shares[0], *shares[1]])]
    for name, gains in both:
        for side, gain in zip("AB", gains, strict=True):
            if gain:
                kind = "total" if name == both[0][0] else ""
                rows.append(svg.ChartRow(f"{side}  {name}", gain.low, gain.estimate, gain.high, times(gain), kind=kind))
    if not rows:
        return None
    title = "Speed-ups of both plans and of what is in them, on a log axis"
    return plot(lambda width: charts.intervals(rows, title, width=width), (), ())


def _figures(
    when: str, one: SideFigures | None, other: SideFigures | None, unit: str
) -> list[tuple[str, str, str, str]]:
    """Rows of one side of both duels."""
    cells = zip(figures.figure_names(unit), figures.figures(one), figures.figures(other), strict=True)
    pairs = zip(_values(one), _values(other), strict=True)
    return [
        (f"{name}, {when}", a or _NONE, b or _NONE, _of(*values))
        for (name, a, b), values in zip(cells, pairs, strict=True)
        if a or b
    ]


def _values(side: Figures | None) -> tuple[float | None, ...]:
    """In the order of `figures.figure_names`."""
    if side is None:
        return (None,) * 4
    return side.samples_per_s, side.seconds_per_step, side.setup_seconds, side.peak_memory


def _of(one: float | None, other: float | None) -> str:
    return f"{other / one:.3g}x" if one and other else _NONE


def _gain(result: TuneResult, kept: Kept) -> str:
    gain = dict(techniques.contributions(result)).get(kept.name) or kept.speedup
    return gain.as_speedup() if gain else "in the plan"


def _with(kept: Kept) -> str:
    return f", {techniques.settings(kept.settings)}" if kept.settings else ""


def _left_out(result: TuneResult, name: str) -> str:
    """Of a technique that is not in the plan, what was measured."""
    measured = next((each for each in techniques.tried(result) if each.name == name), None)
    if measured is None:
        return "not tried" if any(each.name == name for each in techniques.others(result)) else _NONE
    return f"not used ({measured.speedup.as_speedup()})" if measured.speedup else "not used"


def _conditions(result: TuneResult) -> Sequence[tuple[str, str]]:
    return [
        ("Program", result.program[:200]),
        ("Contract", result.contract),
        ("Date", result.date),
        *machine_rows(result.machine, result.versions),
    ]
