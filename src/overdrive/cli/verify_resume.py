"""`overdrive verify --resume`: kills the program at random moments, goes on, and compares the end with an
uninterrupted run's."""

from __future__ import annotations

import math
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from overdrive.cli.json_output import console_beside, write_json
from overdrive.cli.line import fail
from overdrive.cli.resume_copy import size_of_copy
from overdrive.cli.resume_ends import Comparison, compared
from overdrive.cli.resume_place import Length, Moment, Place, newest_snapshot, paths_in_use
from overdrive.core.json_data import to_json
from overdrive.core.json_forms import ResumeForm
from overdrive.core.program import Program
from overdrive.core.units import several
from overdrive.core.unlike_ranks import Survival
from overdrive.worker.saying import say

_MOST_BYTES = 500_000_000
_SNAPSHOTS = 20  # in a whole run, about


@dataclass(frozen=True)
class _Outcome:
    """
    Attributes:
        code: the exit code of the uninterrupted run.
        seconds: that it took.
        moments: seconds after which each process of the other run was killed.
        told: by Overdrive, in all processes of the other run.
        took: what snapshots and going on took; None where that is not known.
    """

    code: int
    seconds: float
    moments: list[float]
    found: Comparison
    told: str
    took: Survival | None


def verify_resume(
    program: Program,
    plan: Path | None,
    kills: int,
    seed: int | None,
    json_path: Path | None = None,
    root: Path | None = None,
) -> int:
    """The exit code: 0 where the end is the same, 1 where not, or where nothing was shown.

    Args:
        plan: that both runs are under; None: the one beside the program, if there is one.
        root: the folder that is copied; None: the working folder.
    """
    console = console_beside(json_path, soft_wrap=True)
    root = _checked(root or Path.cwd(), program)
    seed = secrets.randbelow(10**6) if seed is None else seed
    entropy = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="resume-of-") as scratch:
        outcome = _run(lambda name: Place(Path(scratch), name, program, plan, entropy, root), kills, seed, console)
    gone_on = outcome.told.count("overdrive: gone on after")
    anew = outcome.told.count("overdrive: the run begins from its start")
    reasons = list(dict.fromkeys(line for line in outcome.told.splitlines() if "begins from its start" in line))
    _show(console, outcome.found, reasons)
    nothing = "" if outcome.moments else "it ended before it could be killed"
    if outcome.code:
        nothing = "the program fails by itself"
    verdict = _verdict(outcome.found, nothing)
    killed = len(outcome.moments)
    # Killed before there was a snapshot, or of a program that cannot be gone on with (Keras's, say): made anew.
    without = max(0, killed - gone_on - anew)
    console.print(
        f"{verdict}: killed {several(killed, 'time')}, gone on {several(gone_on, 'time')} in the middle, "
        f"{several(anew, 'time')} sent back to the start"
        + (f", {several(without, 'time')} begun again as there was no snapshot." if without else ".")
    )
    if outcome.took:
        console.print(_as_option(outcome.took))
    form = ResumeForm(
        version=1,
        program=program.command(),
        verdict=verdict,
        seed=seed,
        seconds=outcome.seconds,
        exit_code=outcome.code,
        killed_after=outcome.moments,
        gone_on=gone_on,
        begun_anew=anew,
        reasons=[line.removeprefix("overdrive: ") for line in reasons],
        same=outcome.found.same,
        other_files=outcome.found.differ,
        not_compared=outcome.found.never,
        took=to_json(outcome.took),
    )
    write_json(json_path, form)
    return 0 if outcome.found.alike and not nothing else 1


def _run(place: Callable[[str], Place], kills: int, seed: int, console: Console) -> _Outcome:
    """`place`: makes the place of that name."""
    whole, broken = place("whole"), place("broken")
    began = time.monotonic()
    with whole.undone_outside():
        code = whole.run_whole()
        seconds = time.monotonic() - began
        undisturbed = whole.end(code)
    console.print(f"The uninterrupted run took {seconds:.1f} s. Kills at moments drawn with --seed {seed}.")
    _show_outside(console, whole)
    if code:
        with whole.undone_outside():  # as far as it is known what it writes
            by_itself = place("alone").run_alone()
        _show_failure(console, code, by_itself, whole)
        unknown = Comparison({}, 0, [])
        return _Outcome(code, seconds, [], unknown if code == by_itself else unknown.ended_otherwise(), "", None)
    with broken.undone_outside():
        end, moments = _killed(broken, kills, whole.length(seconds), random.Random(seed), console)
        found = compared(undisturbed, broken.end(end))
    if not found.alike:
        again = place("again")
        with again.undone_outside():
            found = found.but_for(compared(undisturbed, again.end(again.run_whole())))
    return _Outcome(code, seconds, moments, found, broken.told(), broken.survival())


def _as_option(took: Survival) -> str:
    return (
        "What a snapshot, a start and a skipped step took, as `overdrive doctor --for --mtbf` is told: "
        f"--back {took.snapshot * 1e3:.3g}ms,{took.start:.3g}s,{took.replay * 1e3:.3g}ms."
    )


def _show_outside(console: Console, whole: Place) -> None:
    """What a run has written where the user's own files are."""
    if paths := whole.outside():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        told = "is written outside of the folder: compared, and made what it was after each run"
        console.print(f"  {paths[0]}{more} {told}", markup=False)


def _show_failure(console: Console, code: int, by_itself: int, whole: Place) -> None:
    """What an uninterrupted run said as it failed, and what may help.

    Args:
        by_itself: the exit code of one without `--survive`.
    """
    words = (whole.told().strip().splitlines() or [""])[-1]
    if code != by_itself:
        console.print(f"  It ended with {code}, and without --survive with {by_itself}: {words}", markup=False)
        return
    hint = "" if whole.root != Path.cwd() else " (--copy names the folder that holds all it reads, such as ..)"
    console.print(f"  It ended with {code}: {words}{hint}", markup=False)


def _verdict(found: Comparison, nothing: str) -> str:
    """`nothing`: why an end that is the same shows nothing; "" where it does show something."""
    if not found.alike:
        return "The end is ANOTHER one"
    if nothing:
        return f"Nothing was shown: {nothing}"
    return "The end is the same" + (", but for what two uninterrupted runs differ in" if found.never else "")


def _killed(
    broken: Place, kills: int, whole: Length, chance: random.Random, console: Console
) -> tuple[int, list[float]]:
    """Its exit code at last, and the seconds after which each process of it was killed.

    Mostly amid its steps: a process that is killed while it imports its libraries tells nothing.
    """
    every = max(0.001, whole.training / _SNAPSHOTS)
    steps, start = whole.steps, whole.seconds - whole.training
    moments: list[float] = []
    step = 0.0
    end: int | None = None
    while len(moments) < kills and end is None:
        step += (steps - step) / (kills - len(moments) + 1) * chance.uniform(0.3, 1.7) if steps else math.inf
        step = max(
            step, newest_snapshot(broken.state) + 1
        )  # each process comes further than the one before, or has its time
        began = time.monotonic()
        end = broken.run(every, Moment(began + start + chance.uniform(0.2, 1.0) * whole.training, step))
        if end is None:
            moments.append(time.monotonic() - began)
            console.print(f"  killed after {moments[-1]:.1f} s")
    if end is None:
        end = broken.run(every)
    assert end is not None
    return end, moments


def _checked(root: Path, program: Program) -> Path:
    """Whole; a folder that cannot be copied ends this command."""
    root = root.resolve()
    if not Path.cwd().is_relative_to(root):
        fail(f"--copy {root} does not hold the working folder, in which the program is started.")
    if outside := _writable_outside(root):
        say(f"{outside} leads out of the folder: what runs write there is made what it was after each")
    size = size_of_copy(root, paths_in_use(program))
    if size > _MOST_BYTES:
        fail(f"{root} holds {size / 1e9:.1f} GB, and two copies are made of it: start this in a smaller folder.")
    return root


def _writable_outside(root: Path) -> Path | None:
    """A link in it to a folder that is not in it, of which copies share what runs write."""
    links = (path for path in root.rglob("*") if path.is_symlink() and path.is_dir())
    return next((each for each in links if not each.resolve().is_relative_to(root) and os.access(each, os.W_OK)), None)


def _show(console: Console, found: Comparison, reasons: list[str]) -> None:
    for line in reasons:
        console.print(f"  {line.removeprefix('overdrive: ')}", markup=False)
    differ = f" (not {', '.join(found.differ[:3])})" if found.differ else ""
    if found.never:
        console.print(
            f"  not compared, for two uninterrupted runs differ in it: {', '.join(found.never)}", markup=False
        )
    for what, equal in found.same.items():
        named = f"{found.files} files{differ}" if what == "files" else what
        console.print(f"  {'same ' if equal else 'OTHER'}  {named}", markup=False)
