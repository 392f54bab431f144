"""Progress of `overdrive tune`: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from overdrive.trials.duel import Duel
from overdrive.tuner.duel_runner import Progress

_EVERY_SECONDS = 10.0


class Live(Progress):
    def __init__(self, console: Console, budget: float) -> None:
        self._console = console
        self._budget = budget
        self._began = time.monotonic()
        self._stage = "starting"
        self._told_at = 0.0  # seconds after the beginning, in plain lines
        self._status: Status | None = None

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._status = self._console.status("starting", spinner="dots")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status:
            self._status.stop()

    def stage(self, text: str) -> None:
        self._stage = text
        if self._status:
            self._show("starting two processes")
        else:
            self._console.print(f"[{_clock(self._spent())}] {text}", markup=False, highlight=False, soft_wrap=True)

    def pair(self, duel: Duel) -> None:
        if not self._status:
            return
        last = duel.pairs[-1]
        so_far = f"{duel.interval.estimate:.2f}x" if duel.interval else f"{last.seconds_a / last.seconds_b:.2f}x"
        self._show(f"{len(duel.pairs)} pairs of {last.steps} steps, last {so_far}")

    def detail(self, text: str) -> None:
        """How the stage goes on; told where there is a terminal."""
        if self._status:
            self._show(text)

    def filling(self, done: int, total: int) -> None:
        """A trial is reading its samples before it begins: `done` of `total` so far."""
        text = f"{done:,} of {total:,} samples read"
        if self._status:
            self._show(text)
        elif self._spent() - self._told_at > _EVERY_SECONDS:
            self._told_at = self._spent()
            self._console.print(f"        {text}", markup=False, highlight=False, soft_wrap=True)

    def outcome(self, text: str) -> None:
        if self._status:
            line = f"[dim]{_clock(self._spent())}[/dim]  {escape(self._stage)}: [bold]{escape(text)}[/bold]"
            self._console.print(line, highlight=False, soft_wrap=True)
        else:
            self._console.print(f"        {text}", markup=False, highlight=False, soft_wrap=True)

    def _show(self, detail: str) -> None:
        left = max(0.0, self._budget - self._spent())
        assert self._status is not None
        self._status.update(f"{escape(self._stage)}  [dim]{escape(detail)}, {_clock(left)} of the budget left[/dim]")

    def _spent(self) -> float:
        return time.monotonic() - self._began


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
