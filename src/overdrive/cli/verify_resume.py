"""`overdrive verify --resume`: kills the program at random moments, goes on, and compares the end with an
uninterrupted run's."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from overdrive.cli.json_output import console_beside, write_json
from overdrive.cli.line import fail
from overdrive.cli.resume_copy import copy_folder, size_of_copy
from overdrive.cli.resume_ends import Comparison, End, compared
from overdrive.cli.survive import SEED
from overdrive.core.json_data import to_json
from overdrive.core.json_forms import ResumeForm
from overdrive.core.program import Program
from overdrive.core.unlike_ranks import Survival
from overdrive.insight.requirements.failures import survival_of
from overdrive.survive.clocks import MADE
from overdrive.survive.folder import COST, GONE_ON, RunFolder
from overdrive.worker.saying import say

_MOST_BYTES = 500_000_000
_SNAPSHOTS = 20  # in a whole run, about
_LOOKS_EVERY = 0.03  # seconds


@dataclass(frozen=True)
class _Moment:
    """`at`: on the monotonic clock; `step`: whose snapshot comes sooner where the run is faster than the first one."""

    at: float
    step: float

    def has_come(self, state: Path) -> bool:
        return time.monotonic() >= self.at or _newest(state) >= self.step


@dataclass(frozen=True)
class _Length:
    """Of an uninterrupted run. `training`: seconds in which its steps were made; all of it where that is not known."""

    seconds: float
    steps: int
    training: float


def _newest(state: Path) -> int:
    """The step of the newest snapshot there."""
    from overdrive.survive.snapshot import steps_of

    return max(steps_of(state), default=0)


class _Place:
    """A copy of the working folder, in which a run takes place."""

    def __init__(self, within: Path, name: str, program: Program, plan: Path | None, seed: str, root: Path) -> None:
        """`root`: is copied; the working folder, or one that holds it."""
        self.folder, self.state = within / name / "folder", within / name / "run"
        copy_folder(root, self.folder, _used(program))
        self._log = within / name
        self._working = self.folder / Path.cwd().relative_to(root)
        self._root = root
        self._program, self._plan = program, plan.resolve() if plan else None
        self._environment = {**os.environ, SEED: seed, MADE: "1"}  # else no printed time is the same
        self._backs: list[tuple[int, float]] = []  # each time it went on: after which step, and seconds until then

    def run(self, every: float, moment: _Moment | None = None) -> int | None:
        """Its exit code; None where it was killed."""
        command = self._command(f"--survive={self.state}", f"--every={every:.3f}s", f"--record={self._log / 'record'}")
        began = time.monotonic()
        with open(self._log / "out", "ab") as out, open(self._log / "err", "ab") as errors:
            process = subprocess.Popen(
                command,
                cwd=self._working,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            try:
                while moment is not None and not moment.has_come(self.state):
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return process.wait(_LOOKS_EVERY)
                return None if moment else process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):  # its workers, too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                step, at = RunFolder.notes_in(self.state).get(GONE_ON, (0, 0.0))
                if at > began:
                    self._backs.append((step, at - began))

    def run_alone(self) -> int:
        """The exit code of a run without `--survive`."""
        none = subprocess.DEVNULL
        command, folder, variables = self._command(), self._working, self._environment
        return subprocess.run(command, cwd=folder, env=variables, stdin=none, stdout=none, stderr=none).returncode

    def _command(self, *options: str) -> list[str]:
        plan = [f"--plan={self._plan}"] if self._plan else []
        words = [*(["-m"] if self._program.module else []), self._target(), *self._program.arguments]
        return [sys.executable, "-m", "overdrive", "run", *plan, *options, "--", *words]

    def _target(self) -> str:
        """The script in this copy, by whatever path it was named."""
        target = Path(self._program.target)
        if self._program.module or not target.is_absolute() or not target.resolve().is_relative_to(self._root):
            return self._program.target
        return str(self.folder / target.resolve().relative_to(self._root))

    def survival(self) -> Survival | None:
        """What snapshots and going on took in all of its runs; None where they do not tell."""
        cost = RunFolder.notes_in(self.state).get(COST)
        return survival_of(float(cost), self._backs) if cost else None

    def length(self, seconds: float) -> _Length:
        """Of its run, which is over and took `seconds`."""
        record = self._log / "record"
        found = json.loads(record.read_text()) if record.exists() else {}
        steps, pace = int(found.get("steps", 0)), found.get("seconds_per_step")
        return _Length(seconds, steps, min(seconds, steps * pace) if pace else seconds)

    def told(self) -> str:
        return (self._log / "err").read_text(errors="replace")

    def end(self, code: int) -> End:
        record = self._log / "record"
        weights = json.loads(record.read_text()).get("parameters") if record.exists() else None
        files = {
            str(path.relative_to(self.folder)): os.fsencode(os.readlink(path))
            if path.is_symlink()
            else path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts
        }
        return End(code, (self._log / "out").read_bytes(), weights, files)


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
    with tempfile.TemporaryDirectory(prefix="resume-of-") as scratch:
        entropy = secrets.token_hex(16)
        whole, broken = (_Place(Path(scratch), name, program, plan, entropy, root) for name in ("whole", "broken"))
        began = time.monotonic()
        code = whole.run(1e6)
        seconds = time.monotonic() - began
        assert code is not None
        console.print(f"The uninterrupted run took {seconds:.1f} s. Kills at moments drawn with --seed {seed}.")
        by_itself = _Place(Path(scratch), "alone", program, plan, entropy, root).run_alone() if code else 0
        _show_failure(console, code, by_itself, whole, root)
        end, moments = _killed(broken, kills, whole.length(seconds), random.Random(seed), console)
        told, took = broken.told(), broken.survival()
        found = compared(whole.end(code), broken.end(end))
        if not found.alike:
            again = _Place(Path(scratch), "again", program, plan, entropy, root)
            again_code = again.run(1e6)
            assert again_code is not None
            found = found.but_for(compared(whole.end(code), again.end(again_code)))
        if code != by_itself:
            found = found.ended_otherwise()
    gone_on, anew = told.count("overdrive: gone on after"), told.count("overdrive: the run begins from its start")
    reasons = list(dict.fromkeys(line for line in told.splitlines() if "begins from its start" in line))
    _show(console, found, reasons)
    nothing = "" if moments else "it ended before it could be killed"
    if code and not gone_on:  # killed while it imports its libraries it ends alike, too
        nothing = "the program fails by itself"
    verdict = _verdict(found, nothing)
    console.print(
        f"{verdict}: killed {len(moments)} times, gone on {gone_on} times in the middle, {anew} times sent back to the "
        "start."
    )
    if took:
        console.print(
            "What a snapshot, a start and a skipped step took, as `overdrive doctor --for --mtbf` is told: "
            f"--back {took.snapshot * 1e3:.3g}ms,{took.start:.3g}s,{took.replay * 1e3:.3g}ms."
        )
    form = ResumeForm(
        version=1,
        program=program.command(),
        verdict=verdict,
        seed=seed,
        seconds=seconds,
        exit_code=code,
        killed_after=moments,
        gone_on=gone_on,
        begun_anew=anew,
        reasons=[line.removeprefix("overdrive: ") for line in reasons],
        same=found.same,
        other_files=found.differ,
        not_compared=found.never,
        took=to_json(took),
    )
    write_json(json_path, form)
    return 0 if found.alike and not nothing else 1


def _show_failure(console: Console, code: int, by_itself: int, whole: _Place, root: Path) -> None:
    """What an uninterrupted run said as it failed, and what may help; nothing where it did not.

    Args:
        by_itself: the exit code of one without `--survive`.
    """
    if code:
        words = (whole.told().strip().splitlines() or [""])[-1]
        if code != by_itself:
            console.print(f"  It ended with {code}, and without --survive with {by_itself}: {words}", markup=False)
            return
        hint = "" if root != Path.cwd() else " (--copy names the folder that holds all it reads, such as ..)"
        console.print(f"  It ended with {code}: {words}{hint}", markup=False)


def _verdict(found: Comparison, nothing: str) -> str:
    """`nothing`: why an end that is the same shows nothing; "" where it does show something."""
    if not found.alike:
        return "The end is ANOTHER one"
    if nothing:
        return f"Nothing was shown: {nothing}"
    return "The end is the same" + (", but for what two uninterrupted runs differ in" if found.never else "")


def _killed(
    broken: _Place, kills: int, whole: _Length, chance: random.Random, console: Console
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
        step = max(step, _newest(broken.state) + 1)  # each process comes further than the one before, or has its time
        began = time.monotonic()
        end = broken.run(every, _Moment(began + start + chance.uniform(0.2, 1.0) * whole.training, step))
        if end is None:
            moments.append(time.monotonic() - began)
            console.print(f"  killed after {moments[-1]:.1f} s")
    if end is None:
        end = broken.run(every)
    assert end is not None
    return end, moments


def _used(program: Program) -> tuple[Path, ...]:
    """What is copied wherever it lies: the working folder, and the script."""
    return (Path.cwd(), *([] if program.module else [Path(program.target).resolve()]))


def _checked(root: Path, program: Program) -> Path:
    """Whole; a folder that cannot be copied ends this command."""
    root = root.resolve()
    if not Path.cwd().is_relative_to(root):
        fail(f"--copy {root} does not hold the working folder, in which the program is started.")
    if outside := _writable_outside(root):
        say(f"{outside} leads out of the folder: what runs write there they share, and it is not compared")
    size = size_of_copy(root, _used(program))
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
