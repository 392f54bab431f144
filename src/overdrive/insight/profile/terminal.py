"""A profile in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from overdrive.core.units import milliseconds
from overdrive.insight.profile import wording
from overdrive.insight.profile.edits import Edit
from overdrive.insight.profile.record import Profile
from overdrive.report.paper import Paper
from overdrive.report.reading import harmless

_ROWS = 8
_COLUMNS = 7  # of the tables of operators and modules; the page has the others too
_NARROW = 100  # columns: below, the last one would leave too few for the names of operators and modules
_NAME = 28  # columns of a module's name: wrappers make them long, and the end tells which it is


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Names of modules without their first parts, as far as that leaves them apart; the page has them whole."""
    found = []
    for name in names:
        parts = name.split(".")
        shown = name
        for start in range(1, len(parts)):
            end = "." + ".".join(parts[start:])
            if len(shown) <= most or any(other.endswith(end) for other in names if other != name):
                break
            shown = "…" + end[1:]
        found.append(shown)
    return found


def table(profile: Profile, console: Console) -> None:
    result = harmless(profile)
    paper = Paper(console)
    paper.say(f"Overdrive profile: {result.program}", "dim")
    paper.say()
    paper.say(result.bottleneck.sentence if result.bottleneck else "", "bold")
    paper.say()
    paper.rows((f"a {result.unit}", "time", "share", "of which"), wording.part_rows(result))
    if idle := result.gpu_idle_seconds:
        paper.say(f"The GPU does nothing for {milliseconds(idle)} of a {result.unit}.")
    columns = _COLUMNS - 1 if console.width < _NARROW else _COLUMNS
    if rows := wording.operator_rows(result, _ROWS):
        paper.rows(wording.operator_head(result)[:columns], [row[:columns] for row in rows])
    if rows := wording.module_rows(result, _ROWS):
        names = shortened([row[0] for row in rows], _NAME)
        paper.rows(
            wording.module_head(result, _ROWS)[:columns],
            [(name, *row[1:columns]) for name, row in zip(names, rows, strict=True)],
        )
    if rows := wording.read_rows(result, _ROWS):
        paper.rows(("reads a tensor back", "by", f"times a {result.unit}", f"cost a {result.unit}"), rows)
    if rows := wording.memory_rows(result):
        paper.rows((wording.memory_head(result), ""), rows)
    if result.advice is not None:
        _advice(result.advice, paper)
    for line in wording.notes(result):
        paper.say(line)


def _advice(found: Sequence[Edit], paper: Paper) -> None:
    if not found:
        paper.say("Nothing was seen in this program that an edit would fix.")
        paper.say()
    for each in found:
        paper.say(f"{each.file}:{each.line}  {each.kind}", "bold")
        paper.say(f"    {each.source}")
        paper.say(f"  {each.seen}")
        paper.say(f"  {each.edit}")
        paper.say()
