"""What `overdrive doctor` found, in the terminal: the machine, its limits, and what is set up wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from overdrive.core.units import rate
from overdrive.report.machine import lines
from overdrive.report.paper import Paper

_MARKS = {"wrong": ("WRONG", "bold red"), "advice": ("advice", "bold yellow"), "note": ("note", "bold")}
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


def diagnosis(result: Mapping[str, Any], console: Console) -> None:
    """Print all of it; `result` is what `--json` writes."""
    paper = Paper(console)
    paper.pairs(list(lines(result["machine"], result["software"])), _NAMES, ("bold", ""))
    paper.say()
    _limits(result.get("limits") or {}, paper)
    findings(result, paper)


def findings(result: Mapping[str, Any], paper: Paper) -> None:
    """How many, each of them, and what could not be looked at."""
    found = result["findings"]
    paper.say(summary(found), "bold red" if any(each["severity"] == "wrong" for each in found) else "bold green")
    for each in found:
        paper.say()
        mark, style = _MARKS[each["severity"]]
        paper.pairs([(mark, each["what"])], _MARGIN, (style, "bold"))
        if each["severity"] == "note":
            paper.pairs([("", f"{each['cost']} {_fix(each)}")], _MARGIN)
            continue
        paper.pairs([("", f"{each['cost']} ({each['basis']})"), ("", _fix(each))], _MARGIN)
        if each["command"]:
            paper.copied(each["command"], _MARGIN)
        if each["source"] and each["severity"] == "wrong":
            paper.pairs([("", each["source"])], _MARGIN, ("", "dim"))
    left_out = result.get("left_out") or []
    if left_out:
        paper.say()
        paper.say("Not looked at: " + "; ".join(f"{each['what']} ({each['why']})" for each in left_out) + ".", "dim")


def summary(findings: list[Mapping[str, Any]]) -> str:
    """ "2 things are wrong, 1 piece of advice, 3 notes." """
    counts = Counter(each["severity"] for each in findings)
    wrong, advice, notes = counts["wrong"], counts["advice"], counts["note"]
    words = [
        "Nothing is wrong" if not wrong else "1 thing is wrong" if wrong == 1 else f"{wrong} things are wrong",
    ]
    if advice:
        words.append("1 could be better" if advice == 1 else f"{advice} could be better")
    if notes:
        words.append("1 note" if notes == 1 else f"{notes} notes")
    return ", ".join(words) + "."


def _fix(finding: Mapping[str, Any]) -> str:
    doubt = "" if finding["sure"] == "certain" else f" ({finding['sure']})"
    return f"→ {finding['fix']}{doubt}"


def _limits(limits: Mapping[str, Any], paper: Paper) -> None:
    """The limits that were measured: {name: {value, unit, how}}, a line for all of one kind."""
    measures = limits.get("measures") or {}
    if not measures:
        return
    rows: dict[str, list[str]] = {}
    for name, each in measures.items():
        kind, label = next(((kind, label) for kind, label in _KINDS if name.startswith(kind)), ("", "Other"))
        if label:
            what = name[len(kind) :].removeprefix("matmul.").replace(".", " ").replace("_", " ")
            rows.setdefault(label, []).append(f"{what} {rate(each['value'], each['unit'])}")
    how = "measured now" if limits.get("fresh") else "measured before"
    paper.say(f"What it can do ({how}, the best of several; --json says how):", "dim")
    paper.pairs([(label, ", ".join(items)) for label, items in rows.items()], _NAMES, ("bold", ""))
    if missing := [name for name in limits.get("missing") or () if not name.startswith("cpu.1.")]:
        paper.pairs([("not measured", ", ".join(missing))], _NAMES, ("dim", "dim"))
    if limits.get("busy_share", 0) > _BUSY:
        others = f"Others used {limits['busy_share']:.0%} of the cores just then"
        paper.say(f"{others}: these are too low. Measure again with --fresh.", "yellow")
    for note in limits.get("notes") or ():
        paper.say(note, "dim")
    paper.say()
