"""Prints text, tables and commands: plain where there is no terminal, and never read as markup."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 100  # columns, where the output is no terminal
_SHORT = 8  # letters of a cell that stays whole: a number and its unit
_BETWEEN = 3  # columns between those of a table
_ASCII = str.maketrans(
    {"×": "x", "±": "+/-", "\N{MINUS SIGN}": "-", "–": "-", "’": "'", "µ": "u", "°": "", "“": '"', "”": '"', "→": "->"}
)


class Paper:
    """A console that takes nothing for markup and stays within a readable width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width if console.is_terminal else min(console.width, PLAIN_WIDTH)

    def say(self, value: str = "", style: str = "") -> None:
        self._console.print(self._text(value, style), width=self._width, overflow="fold")

    def rows(self, head: Sequence[str], body: Sequence[Sequence[str]], right: bool = False) -> None:
        grid = Table(box=None, padding=(0, _BETWEEN, 0, 0), pad_edge=False, header_style="dim")
        widths = _widths([head, *body], self._width - _BETWEEN * (len(head) - 1))
        for place, name in enumerate(head):
            justify: JustifyMethod = "right" if right and place else "left"
            grid.add_column(self._text(name), justify=justify, overflow="fold", width=widths[place])
        for row in body:
            grid.add_row(*(self._text(cell, "" if place else "bold") for place, cell in enumerate(row)))
        self._console.print(grid, width=self._width)
        self.say()

    def pairs(self, body: Sequence[tuple[str, str]], width: int = 0, styles: tuple[str, str] = ("dim", "")) -> None:
        """A name and what is said of it, line after line; the names' column is `width` wide, or as it must be."""
        width = width or max((len(name) for name, _ in body), default=0) + 2
        for name, said in body:
            lines = wrap(said, max(20, self._width - width), break_long_words=False, break_on_hyphens=False) or [""]
            for place, line in enumerate(lines):
                start = self._text((name if place == 0 else "").ljust(width), styles[0])
                self._console.print(Text.assemble(start, self._text(line, styles[1])), soft_wrap=True)

    def copied(self, command: str, indent: int) -> None:
        """One line to be copied, whatever its length: a line break within it would be another command."""
        self._console.print(self._text(" " * indent + command, "cyan"), soft_wrap=True)

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


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """Of a table's columns, so that words stay whole: a file with its line is to be copied whole. None: as it comes."""
    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max((cell_len(word) for cell in column for word in _unbroken(cell)), default=0) for column in columns]
    whole = [max((cell_len(line) for cell in column for line in cell.splitlines()), default=0) for column in columns]
    spare = room - sum(widths)
    if spare < 0 or sum(whole) <= room:
        return [None] * len(columns)
    # What lacks least is made whole first: a number stays beside its unit, and a sentence is what is wrapped.
    for place in sorted(range(len(columns)), key=lambda place: whole[place] - widths[place]):
        more = min(whole[place] - widths[place], spare)
        widths[place] += more
        spare -= more
    return list(widths)


def _unbroken(cell: str) -> list[str]:
    return [cell] if len(cell) <= _SHORT else cell.split()


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
