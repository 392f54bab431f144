"""Progress of `overdrive tune`: a few lines that change on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from overdrive.core.interval import Interval
from overdrive.core.units import clock, several
from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress

_EVERY_SECONDS = 10.0
_MOST_SHOWN = 12  # candidates
_HALF_WIDTH = 12  # characters of a bar on either side of no gain
_FULL = math.log(2.0)  # log-speedup at the end of a bar


class Live(Progress):
    def __init__(self, console: Console, budget: float) -> None:
        self._console = console
        self._budget = budget
        self._began = time.monotonic()
        self._stage = "starting"
        self._detail = ""
        self._standings: Mapping[str, Interval] = {}
        self._told_at = 0.0  # seconds after the beginning, in plain lines
        self._spinner = Spinner("dots")
        self._screen: Screen | None = None

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._screen = Screen(
                console=self._console, get_renderable=self._picture, refresh_per_second=4, transient=True
            )
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen:
            self._screen.stop()

    def stage(self, text: str) -> None:
        self._stage, self._detail, self._standings = text, "starting processes", {}
        if not self._screen:
            self._console.print(f"[{clock(self._spent())}] {text}", markup=False, highlight=False, soft_wrap=True)

    def pair(self, duel: Duel) -> None:
        last = duel.pairs[-1]
        last_one = f"last {last.seconds_a / last.seconds_b:.2f}x"
        so_far = f"{duel.interval.estimate:.2f}x so far" if duel.interval else last_one
        self._detail = f"{several(len(duel.pairs), 'pair')} of {several(last.steps, duel.old.unit)}, {so_far}"

    def candidates(self, text: str, speedups: Mapping[str, Interval]) -> None:
        self._detail, self._standings = text, speedups
        best = sorted(speedups, key=lambda name: -speedups[name].estimate)[:3]
        self._now_and_then(f"{text}: " + ", ".join(f"{name} {speedups[name].as_speedup()}" for name in best))

    def filling(self, done: int, total: int) -> None:
        """A trial is reading its samples before it begins: `done` of `total` so far."""
        self._detail = f"{done:,} of {total:,} samples read"
        self._now_and_then(self._detail)

    def outcome(self, text: str) -> None:
        if self._screen:
            line = f"[dim]{clock(self._spent())}[/dim]  {escape(self._stage)}: [bold]{escape(text)}[/bold]"
            self._console.print(line, highlight=False, soft_wrap=True)
        else:
            self._console.print(f"        {text}", markup=False, highlight=False, soft_wrap=True)

    def _now_and_then(self, text: str) -> None:
        """A plain line, where there is no terminal and none was written lately."""
        if not self._screen and self._spent() - self._told_at > _EVERY_SECONDS:
            self._told_at = self._spent()
            self._console.print(f"        {text}", markup=False, highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        """What is shown now: drawn again four times a second, so that the time left counts down."""
        left = max(0.0, self._budget - self._spent())
        line = Text.assemble(f"{self._stage}  ", (f"{self._detail}, {clock(left)} of the budget left", "dim"))
        self._spinner.update(text=line)
        return Group(self._spinner, _standings(self._standings)) if self._standings else self._spinner

    def _spent(self) -> float:
        return time.monotonic() - self._began


def _standings(speedups: Mapping[str, Interval]) -> Table:
    """The candidates in order of their estimates, each with its interval as a bar about no gain."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    names = sorted(speedups, key=lambda name: -speedups[name].estimate)
    for name in names[:_MOST_SHOWN]:
        found = speedups[name]
        style = "green" if found.low > 1 else "red" if found.high < 1 else "dim"
        table.add_row(Text(f"  {name}"), Text(bar(found), style=style), Text(found.as_speedup(), style="dim"))
    if len(names) > _MOST_SHOWN:
        table.add_row(Text(f"  and {len(names) - _MOST_SHOWN} more", style="dim"))
    return table


def bar(found: Interval) -> str:
    """An interval as text: `──●──│──`, with `│` where there is no gain; the ends are half and twice the speed."""
    low, centre, high = (_place(each) for each in (found.low, found.estimate, found.high))
    cells = [" "] * (2 * _HALF_WIDTH + 1)
    for place in range(low, high + 1):
        cells[place] = "─"
    cells[_HALF_WIDTH] = "│"
    cells[centre] = "●"
    return "".join(cells)


def _place(speedup: float) -> int:
    share = math.log(max(speedup, 1e-6)) / _FULL if math.isfinite(speedup) else 1.0
    return _HALF_WIDTH + round(max(-1.0, min(1.0, share)) * _HALF_WIDTH)
