"""The table in the terminal: plain where there is no terminal, and nothing in it is taken for markup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 100  # columns, where the output is no terminal


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
