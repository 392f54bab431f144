"""What `overdrive doctor --for --ranks` is asked: one number of ranks, or more and more of them, of any kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from overdrive.cli.line import fail
from overdrive.cli.values import Duration, Parsed, Whole
from overdrive.core.link import Link
from overdrive.core.units import duration
from overdrive.core.unlike_ranks import Failures, Sizes, Slow, Survival

if TYPE_CHECKING:
    from overdrive.machine.pool.curve import Measured

_NUMBERS = re.compile(r"(\d+)(?:\.\.(\d+))?", re.ASCII)
_SLOW = re.compile(r"(\d+(?:\.\d+)?)%,\s*(\d+(?:\.\d+)?)x", re.ASCII)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|m)", re.ASCII)
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


@dataclass(frozen=True)
class OnRanks:
    """So many ranks, of which is told what each would hold, and how long a step would take.

    Attributes:
        memory: bytes that each rank has; None: not told.
        link: what connects them, as stated or as it was measured; None: it is measured here.
    """

    count: int
    memory: int | None = None
    link: Link | Measured | None = None


@dataclass(frozen=True)
class Stated:
    """What the user says of ranks that are slow or fail; seconds. None: nothing."""

    layout: str | None
    slow: Slow | None
    mtbf: float | None
    back: Survival | None
    steps: int | None

    @property
    def any(self) -> bool:
        return any(each is not None for each in (self.layout, self.slow, self.mtbf, self.back, self.steps))

    def refused_without_sizes(self) -> None:
        if self.any:
            fail("--layout, --slow, --mtbf, --back and --steps are for more and more ranks: --for --ranks 8..4096.")


def _numbers(text: str) -> tuple[int, int]:
    """The first and the last of `8..4096`; the same twice of `8`."""
    parts = _NUMBERS.fullmatch(text.strip())
    first, last = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
    if not 2 <= first <= last:
        raise ValueError(f"{text!r} is no number of ranks, 2 or more; write for example 8 or 8..4096")
    return first, last


def _slow(text: str) -> Slow:
    parts = _SLOW.fullmatch(text.strip())
    if parts is None or not 0 < float(parts[1]) <= 100 or float(parts[2]) < 1:
        raise ValueError(f"{text!r} does not say which share of ranks is how slow; write for example 1%,1.5x")
    return Slow(float(parts[1]) / 100, float(parts[2]))


def _back(text: str) -> Survival:
    parts = [_SECONDS.fullmatch(each.strip()) for each in text.split(",")]
    seconds = [float(each[1]) * _UNITS[each[2]] for each in parts if each]
    if len(seconds) != 3 or len(parts) != 3:
        raise ValueError(
            f"{text!r} does not say what a snapshot, a start and a step that is skipped take; write for example "
            "0.1s,20s,2ms"
        )
    return Survival(*seconds)


NUMBERS = Parsed("ranks", _numbers)


def stated_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `Stated`, which the command has as `stated`."""

    @click.option(
        "--layout",
        type=click.Choice(["data", "zero1", "shard"]),
        help="With --ranks N..M: what the ranks divide.  [default: data]",
    )
    @click.option(
        "--slow",
        type=Parsed("slow", _slow),
        metavar="SHARE,TIMES",
        help="With --ranks N..M: this share of ranks takes so many times as long (1%,1.5x).",
    )
    @click.option("--mtbf", type=Duration(long=True), help="With --ranks N..M: mean time between failures of one (5y).")
    @click.option(
        "--back",
        type=Parsed("back", _back),
        metavar="SNAPSHOT,START,SKIP",
        help="With --mtbf: how long `run --survive` takes for a snapshot, a start and a skipped step (0.1s,20s,2ms).",
    )
    @click.option("--steps", type=Whole(min=1), help="With --mtbf: the number of steps of the whole run.")
    @wraps(command)
    def with_stated(
        layout: str | None,
        slow: Slow | None,
        mtbf: float | None,
        back: Survival | None,
        steps: int | None,
        **others: Any,
    ) -> Any:
        return command(stated=Stated(layout, slow, mtbf, back, steps), **others)

    return with_stated


def asked(ranks: tuple[int, int], memory: int | None, link: Link | Measured | None, stated: Stated) -> OnRanks | Sizes:
    """What does not go together ends the command."""
    first, last = ranks
    if first == last:
        stated.refused_without_sizes()
        return OnRanks(first, memory, link)
    if not isinstance(link, Link):
        fail(f"--ranks {first}..{last} are more than were measured: say how they are connected (--link hdr).")
    if memory is not None:
        fail("--memory is for one number of --ranks.")
    failures = None
    said = []
    if stated.slow:
        said.append(f"{stated.slow.share:.3g} of all ranks compute {stated.slow.times:.3g} times as long")
    if stated.mtbf is not None:
        if stated.back is None or stated.steps is None:
            fail(
                "--mtbf needs what it takes to go on, and how many steps a run has: --back 0.1s,20s,2ms --steps 100000."
            )
        failures = Failures(stated.mtbf, stated.steps, stated.back)
        back = stated.back
        said.append(
            f"a rank fails every {duration(stated.mtbf)}; a snapshot takes {duration(back.snapshot)}, a start "
            f"{duration(back.start)}, a step that is skipped {duration(back.replay)}; a run has {stated.steps:,} steps"
        )
    elif stated.back or stated.steps:
        fail("--back and --steps are of ranks that fail: say how often (--mtbf 5y).")
    return Sizes(first, last, link, stated.layout or "data", stated.slow, failures, tuple(said))
