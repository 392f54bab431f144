"""A profile in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from overdrive.insight.profile import wording
from overdrive.insight.profile.drawings import milliseconds
from overdrive.insight.profile.edits import Edit
from overdrive.insight.profile.record import Profile
from overdrive.report.paper import Paper
from overdrive.report.reading import harmless

_ROWS = 8
_COLUMNS = 7  # of the tables of operators and modules; the page has the others too


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
    if rows := wording.operator_rows(result, _ROWS):
        paper.rows(wording.operator_head(result)[:_COLUMNS], [row[:_COLUMNS] for row in rows])
    if rows := wording.module_rows(result, _ROWS):
        paper.rows(wording.module_head(result)[:_COLUMNS], [row[:_COLUMNS] for row in rows])
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
