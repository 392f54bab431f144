"""What `overdrive doctor` found, in the terminal: the machine, its limits, and what is set up wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from overdrive.core.units import rate
from overdrive.machine.diagnosis import Diagnosis, Found
from overdrive.machine.limits import Limits
from overdrive.machine.rules.finding import Finding, Severity, Sure
from overdrive.report.machine import lines
from overdrive.report.paper import Paper

_MARKS = {
    Severity.WRONG: ("WRONG", "bold red"),
    Severity.ADVICE: ("advice", "bold yellow"),
    Severity.NOTE: ("note", "bold"),
}
# The first that a limit's name begins with says in which line it stands; "" is left to --json.
_KINDS: tuple[tuple[str, str], ...] = (
    ("cpu.1.", ""),
    ("cpu.", "CPU"),
    ("cuda.", "GPU"),
    ("transfer.", "Copies"),
    ("storage.", "Disk"),
)
_KINDS += (("files.", "Files"), ("jpeg.", "JPEG"), ("all_reduce.", "All-reduce"))
_BUSY = 0.1
_NAMES = 14  # columns before what is said of a part of the machine
_MARGIN = 8  # and of a finding


def diagnosis(result: Diagnosis, console: Console) -> None:
    """Print all of it."""
    paper = Paper(console)
    paper.pairs(list(lines(result.machine, result.software)), _NAMES, ("bold", ""))
    paper.say()
    _limits(result.limits, paper)
    findings(result, paper)


def findings(result: Found, paper: Paper) -> None:
    """How many, each of them, and what could not be looked at."""
    paper.say(summary(result.findings), "bold red" if result.exit_code else "bold green")
    for each in result.findings:
        paper.say()
        mark, style = _MARKS[each.severity]
        paper.pairs([(mark, each.what)], _MARGIN, (style, "bold"))
        if each.severity is Severity.NOTE:
            paper.pairs([("", f"{each.cost} {_fix(each)}")], _MARGIN)
            continue
        paper.pairs([("", f"{each.cost} ({each.basis.value})"), ("", _fix(each))], _MARGIN)
        if each.command:
            paper.copied(each.command, _MARGIN)
        if each.source and each.severity is Severity.WRONG:
            paper.pairs([("", each.source)], _MARGIN, ("", "dim"))
    if result.left_out:
        paper.say()
        paper.say("Not looked at: " + "; ".join(f"{each.what} ({each.why})" for each in result.left_out) + ".", "dim")


def summary(findings: Sequence[Finding]) -> str:
    """ "2 things are wrong, 1 piece of advice, 3 notes." """
    counts = Counter(each.severity for each in findings)
    wrong, advice, notes = counts[Severity.WRONG], counts[Severity.ADVICE], counts[Severity.NOTE]
    words = [
        "Nothing is wrong" if not wrong else "1 thing is wrong" if wrong == 1 else f"{wrong} things are wrong",
    ]
    if advice:
        words.append("1 could be better" if advice == 1 else f"{advice} could be better")
    if notes:
        words.append("1 note" if notes == 1 else f"{notes} notes")
    return ", ".join(words) + "."


def _fix(finding: Finding) -> str:
    doubt = "" if finding.sure is Sure.CERTAIN else f" ({finding.sure.value})"
    return f"→ {finding.fix}{doubt}"


def _limits(limits: Limits, paper: Paper) -> None:
    """The limits that were measured, a line for all of one kind."""
    if not limits.measures:
        return
    rows: dict[str, list[str]] = {}
    for name, each in limits.measures.items():
        kind, label = next(((kind, label) for kind, label in _KINDS if name.startswith(kind)), ("", "Other"))
        if label:
            what = name[len(kind) :].removeprefix("matmul.").replace(".", " ").replace("_", " ")
            rows.setdefault(label, []).append(f"{what} {rate(each.value, each.unit)}")
    how = "measured now" if limits.fresh else "measured before"
    paper.say(f"What it can do ({how}, the best of several; --json says how):", "dim")
    paper.pairs([(label, ", ".join(items)) for label, items in rows.items()], _NAMES, ("bold", ""))
    if missing := [name for name in limits.missing if not name.startswith("cpu.1.")]:
        paper.pairs([("not measured", ", ".join(missing))], _NAMES, ("dim", "dim"))
    if limits.busy_share > _BUSY:
        others = f"Others used {limits.busy_share:.0%} of the cores just then"
        paper.say(f"{others}: these are too low. Measure again with --fresh.", "yellow")
    for note in limits.notes:
        paper.say(note, "dim")
    paper.say()
