"""`overdrive run --on-nan`, `--on-spike`, `--on-hang`: what is told of a run that goes wrong, and what is done then."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overdrive.cli.line import fail
from overdrive.cli.values import Duration
from overdrive.core.program import Program
from overdrive.worker.watching.losses import LOST, LossWatch

if TYPE_CHECKING:
    from overdrive.ranks.rank import Rank
    from overdrive.seams.hub import Seams
    from overdrive.survive.survivor import Survivor
    from overdrive.worker.watching.stacks import Stacks

HANG_AFTER = 300.0

_ON_NAN = "If a loss is not finite: end the run (exit code 65), take a snapshot (with --survive), or only report it."
_ON_SPIKE = (
    "Watch for jumps of the loss; then end the run (exit code 65), take a snapshot (with --survive), or only report it."
)
_ON_HANG = "Watch for hangs; then write the stacks of all threads (stop: and end, exit code 75), or only report it."
_HANG_AFTER = "With --on-hang: the shortest pause that counts as a hang, if it is also unusually long.  [default: 5m]"


@dataclass(frozen=True)
class WatchWish:
    """What the command's line asks for."""

    on_nan: str | None = None
    on_hang: str | None = None
    hang_after: float | None = None
    on_spike: str | None = None

    def check(self, survives: bool) -> None:
        for option, wish in (("--on-nan", self.on_nan), ("--on-spike", self.on_spike)):
            if wish == "snapshot" and not survives:
                fail(f"{option} snapshot belongs to --survive.")
        if self.hang_after is not None and self.on_hang is None:
            fail("--hang-after belongs to --on-hang.")


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--hang-after", type=Duration(), help=_HANG_AFTER),
        click.option("--on-hang", type=click.Choice(["stop", "stacks", "go-on"]), help=_ON_HANG),
        click.option("--on-spike", type=click.Choice(["stop", "snapshot", "go-on"]), help=_ON_SPIKE),
        click.option("--on-nan", type=click.Choice(["stop", "snapshot", "go-on"]), help=_ON_NAN),
    ):
        command = option(command)
    return command


class Watching:
    """All that watches one run.

    Attributes:
        observers: for its `Session`.
    """

    def __init__(
        self,
        wish: WatchWish,
        program: Program,
        steps: Callable[[], int],
        say: Callable[[str], None],
        rank: Rank | None = None,
        survivor: Survivor | None = None,
    ) -> None:
        """
        Args:
            steps: complete ones so far.
        """
        self._losses = LossWatch(wish.on_nan, steps, rank.say if rank else say, wish.on_spike)
        self.observers: list[Callable[[Seams], None]] = [self._losses]
        if survivor:
            self._losses.take_snapshot = survivor.ask
            self._losses.made_again = lambda: survivor.replaying
        if wish.on_hang:
            from overdrive.worker.watching.hangs import HangWatch

            stacks = None if wish.on_hang == "go-on" else _stacks(program, rank, survivor)
            least = wish.hang_after or HANG_AFTER
            hangs = HangWatch(wish.on_hang, least, steps, stacks, _say_at_once if rank is None else _by_name(rank))
            if rank:
                hangs.waits_for_others = lambda: rank.waits_for_others
                hangs.ask_others, rank.write_stacks = rank.ask_for_stacks, hangs.write_stacks
            self.observers.append(hangs)

    def code(self, code: int) -> int:
        """The exit code: a thread of the program's that is ended for its loss does not end the program."""
        return LOST if self._losses.stopped and not code else code


def _stacks(program: Program, rank: Rank | None, survivor: Survivor | None) -> Stacks:
    from overdrive.worker.watching.stacks import Stacks

    if survivor:
        path = survivor.folder.path / (f"stacks-{rank.rank}.txt" if rank and rank.rank else "stacks.txt")
    elif rank and rank.output.log:
        path = rank.output.log.with_suffix(".stacks.log")
    else:
        path = Path(f"{Path(program.name).stem}.stacks.txt").resolve()
    try:
        return Stacks(path)
    except OSError as error:
        fail(f"The stacks of a hang cannot be written to {path}: {error.strerror}.")


def _say_at_once(text: str) -> None:
    """Another thread may hold the stream."""
    os.write(2, f"overdrive: {text}\n".encode(errors="replace"))


def _by_name(rank: Rank) -> Callable[[str], None]:
    def say(text: str) -> None:
        rank.output.keep()  # where its stacks are may be a part of that
        rank.output.say(f"{rank.name}: {text}")

    return say
