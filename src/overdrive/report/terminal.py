"""The table in the terminal: plain where there is no terminal, and nothing in it is taken for markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from overdrive.report import words
from overdrive.report.proof import proof
from overdrive.report.reading import interval, mappings, word

PLAIN_WIDTH = 100  # columns, where the output is no terminal
_ASCII = str.maketrans({"×": "x", "±": "+/-", "\N{MINUS SIGN}": "-", "–": "-", "’": "'", "µ": "u"})


def table(result: Mapping[str, Any], console: Console) -> None:
    """Print the verdict, the numbers, what was adopted and what was not, the proof, and how to run the plan."""
    paper = _Paper(console)
    found = words.verdict(result)
    good = words.usable(result)
    program = word(result.get("program"), 2000)
    paper.say(f"Overdrive: {program}" if program else "Overdrive", "dim")
    paper.say()
    style = "bold green" if good else "bold red" if found in ("FASTER", "SLOWER") else "bold"
    paper.say(words.sentence(result), style)
    if told := words.notice(result):
        paper.say(told)
    paper.say()
    numbers = words.before_after(result)
    if numbers:
        after = "after" if found == "FASTER" else "not adopted"
        paper.rows(("", "before", after), [(name, a or "-", b or "-") for name, a, b in numbers], right=True)
    _adopted(result, "adopted" if found == "FASTER" else "not adopted", paper)
    _proof(result, paper)
    rejected = [(word(item.get("name"), 80), words.reason(item)) for item in words.dropped(result)]
    if rejected:
        paper.rows(("tried, not used", "why"), rejected)
    for line in (*words.sums(result), *words.sentences(result)):
        paper.say(line)
    command = words.command(result) if good else []
    if command:
        paper.say()
        paper.say("Run it:", "dim")
        paper.command(command)


class _Paper:
    """A console that takes nothing for markup and stays within a readable width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else min(console.width, PLAIN_WIDTH)

    def say(self, value: str = "", style: str = "") -> None:
        self._console.print(self._text(value, style), width=self._width, overflow="fold")

    def rows(self, head: Sequence[str], body: Sequence[Sequence[str]], right: bool = False) -> None:
        grid = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
        for place, name in enumerate(head):
            grid.add_column(self._text(name), justify="right" if right and place else "left", overflow="fold")
        for row in body:
            grid.add_row(*(self._text(cell, "" if place else "bold") for place, cell in enumerate(row)))
        self._console.print(grid, width=self._width)
        self.say()

    def command(self, command: Sequence[str]) -> None:
        """A command to be copied: never folded within a word, which would be another command."""
        lines = [" ".join(command)] if self._console.is_terminal else _continued(command, self._width)
        self._console.print(self._text("\n".join(lines), "bold"), soft_wrap=True)

    def _text(self, value: str, style: str = "") -> Text:
        encoding = self._console.encoding or "utf-8"  # a pipe may speak ASCII only
        try:
            value.encode(encoding)
        except UnicodeEncodeError:
            value = value.translate(_ASCII).encode(encoding, "replace").decode(encoding)
        return Text(value, style=style, overflow="fold")


def _adopted(result: Mapping[str, Any], title: str, paper: _Paper) -> None:
    adopted = mappings(result.get("techniques"))
    if not adopted:
        return
    shares = dict(words.contributions(result))
    body = []
    for item in adopted:
        name = word(item.get("name"), 80)
        measured = shares.get(name) or interval(item.get("speedup"))
        check = word(item.get("check")) or "no check recorded"
        body.append((name, word(item.get("contract"), 40) or "-", str(measured or "-"), check))
    paper.rows((title, "contract", "speed-up", "check"), body)


def _proof(result: Mapping[str, Any], paper: _Paper) -> None:
    found = proof(result)
    if found is None:
        return
    body = []
    if same := [what for what, _, held in found.invariants if held]:
        body.append(("always", "the same", ", ".join(same)))
    body += [("always", "NOT THE SAME", f"{what}: {told}") for what, told, held in found.invariants if not held]
    for each in found.levels:
        if each.told:
            said = "not established" if each.holds is None else "holds" if each.holds else "does not hold"
            asked = "" if each.level is found.claimed else ", not asked for" if each.holds is False else ""
            body.append((str(each.level), said + asked, each.told))
    if body:
        paper.rows(("sameness", "verdict", "what was compared"), body)


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
