"""The table in the terminal: plain where there is no terminal, and nothing in it is taken for markup."""

from __future__ import annotations

from rich.console import Console

from overdrive.core.tune_result import TuneResult
from overdrive.report import figures, scaling, techniques, words
from overdrive.report.paper import Paper
from overdrive.report.precision import precision
from overdrive.report.proof import proof
from overdrive.report.reading import harmless

_MOST_SIZES = 8  # of inputs


def table(result: TuneResult, console: Console, everything: bool = False) -> None:
    """Print the numbers, what was adopted and what was not, the proof, the verdict, and how to run the plan.

    Args:
        everything: name also what was not tried, each with its reason.
    """
    result, paper = harmless(result), Paper(console)
    program = result.program[:2000]
    paper.say(f"Overdrive: {program}" if program else "Overdrive", "dim")
    if result.notice:
        paper.say(result.notice)
    paper.say()
    numbers = figures.before_after(result)
    if numbers:
        after = "after" if words.adopted(result) else "not adopted"
        if any(b for *_, b in numbers):
            paper.rows(("", "before", after), [(name, a or "-", b or "-") for name, a, b in numbers], right=True)
        else:
            paper.rows(("", "as it is"), [(name, a) for name, a, _ in numbers], right=True)
    if rows := figures.devices(result):
        paper.rows(figures.DEVICES_HEAD, rows, right=True)
    _scaling(result, paper)
    if rows := figures.sizes(result, _MOST_SIZES):
        paper.rows(figures.SIZES_HEAD, rows, right=True)
    _adopted(result, "adopted" if words.adopted(result) else "not adopted", paper)
    _proof(result, paper)
    if formats := [row for row in precision(result) if row.measured]:
        body = [(f"{row.name} {row.by}".strip(), row.speed, row.memory, row.error, row.learns) for row in formats]
        paper.rows(("numbers", "speed", "peak memory", "error", "learns the same"), body)
    tried = techniques.tried(result)
    rejected = techniques.dropped(result) if everything else tried
    if rejected:
        head = "measured, not used" if len(rejected) == len(tried) else "not used"
        paper.rows((head, "why"), [(each.name, techniques.reason(each)) for each in rejected])
    untried = techniques.untried(result)
    if untried and not everything:
        paper.say(f"{untried} --all lists them.")
    for line in filter(
        None, (*techniques.sums(result), figures.items(result), figures.one_size(result), *words.sentences(result))
    ):
        paper.say(line)
    paper.say()
    _verdict(result, paper)


def _verdict(result: TuneResult, paper: Paper) -> None:
    """What it came to, and what to type now: last, where the eye is."""
    found, good = words.verdict(result), words.usable(result)
    style = "bold green" if good else "bold red" if found in ("FASTER", "SLOWER") else "bold"
    paper.say(words.sentence(result), style)
    if result.next_step:
        paper.say(result.next_step)
    command = words.command(result) if good else []
    if command:
        paper.say()
        paper.say("Run it:", "dim")
        paper.command(command)


def _scaling(result: TuneResult, paper: Paper) -> None:
    if not (rows := scaling.strong(result)):
        return
    paper.rows(scaling.strong_head(result), rows, right=True)
    paper.say(scaling.STRONG, "dim")
    if rows := scaling.weak(result):
        paper.rows(scaling.WEAK_HEAD, rows, right=True)
        paper.say(scaling.WEAK, "dim")
    for line in scaling.notes(result):
        paper.say(line)


def _adopted(result: TuneResult, title: str, paper: Paper) -> None:
    if not result.techniques:
        return
    shares = dict(techniques.contributions(result))
    body = []
    for each in result.techniques:
        measured = shares.get(each.name) or each.speedup
        speed = measured.as_speedup() if measured else "-"
        body.append((each.name, each.contract or "-", speed, each.check or "no check recorded"))
    paper.rows((title, "contract", "speed-up", "check"), body)


def _proof(result: TuneResult, paper: Paper) -> None:
    found = proof(result)
    if found is None:
        return
    body = []
    if same := [what for what, _, held in found.invariants if held]:
        body.append(("always", "the same", ", ".join(same)))
    body += [("always", "NOT THE SAME", f"{what}: {detail}") for what, detail, held in found.invariants if not held]
    for each in found.levels:
        if each.detail:
            said = "not established" if each.holds is None else "holds" if each.holds else "does not hold"
            asked = "" if each.level is found.claimed else ", not asked for" if each.holds is False else ""
            body.append((str(each.level), said + asked, each.detail))
    if body:
        paper.rows(("sameness", "verdict", "what was compared"), body)
