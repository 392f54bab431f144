"""Where `overdrive verify --resume` runs a program: a copy of its folder, with a folder of `--survive` beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overdrive.cli.line import fail
from overdrive.cli.resume_copy import copy_folder
from overdrive.cli.resume_ends import End
from overdrive.cli.survive import SEED
from overdrive.core.program import Program
from overdrive.core.unlike_ranks import Survival
from overdrive.core.variables import set_in
from overdrive.insight.requirements.failures import Back, survival_of
from overdrive.ranks.trackers import MLFLOW_FOLDER, STORE, kept_here
from overdrive.seams.clocks import MADE
from overdrive.seams.points import reason_of
from overdrive.survive.files import Files
from overdrive.survive.folder import COST, GONE_ON, RunFolder

_LOOKS_EVERY = 0.03  # seconds
_NEVER = 1e6  # seconds between two snapshots


@dataclass(frozen=True)
class Moment:
    """`at`: on the monotonic clock; `step`: whose snapshot comes sooner where the run is faster than the first one."""

    at: float
    step: float

    def has_come(self, state: Path) -> bool:
        return time.monotonic() >= self.at or newest_snapshot(state) >= self.step


@dataclass(frozen=True)
class Length:
    """Of an uninterrupted run. `training`: seconds in which its steps were made; all of it where that is not known."""

    seconds: float
    steps: int
    training: float


def newest_snapshot(state: Path) -> int:
    """The step of the newest snapshot there."""
    from overdrive.survive.snapshot import steps_of

    return max(steps_of(state), default=0)


class Place:
    """A copy of the working folder, in which a run takes place."""

    def __init__(self, within: Path, name: str, program: Program, plan: Path | None, seed: str, root: Path) -> None:
        """`root`: is copied; the working folder, or one that holds it."""
        self.folder, self.state = within / name / "folder", within / name / "run"
        copy_folder(root, self.folder, paths_in_use(program))
        self._log = within / name
        self._working = self.folder / Path.cwd().relative_to(root)
        self.root = root
        self._program, self._plan = program, plan.resolve() if plan else None
        store = (within.resolve() / name / MLFLOW_FOLDER).as_uri()  # trackers would have several runs more of it
        self._environment = {**os.environ, SEED: seed, MADE: "1", STORE: store}  # else no printed time is the same
        set_in(self._environment, kept_here(os.environ, store))
        self._backs: list[Back] = []

    def run(self, every: float, moment: Moment | None = None) -> int | None:
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
                step, first, last = RunFolder.notes_in(self.state).get(GONE_ON, (0, 0.0, 0.0))
                if last > began:
                    self._backs.append(Back(step, first - began, last - began))

    def run_whole(self) -> int:
        """The exit code of a run that nobody kills."""
        code = self.run(_NEVER)
        assert code is not None
        return code

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
        if self._program.module or not target.is_absolute() or not target.resolve().is_relative_to(self.root):
            return self._program.target
        return str(self.folder / target.resolve().relative_to(self.root))

    def survival(self) -> Survival | None:
        """What snapshots and going on took in all of its runs; None where they do not tell."""
        cost = RunFolder.notes_in(self.state).get(COST)
        return survival_of(float(cost), self._backs) if cost else None

    def length(self, seconds: float) -> Length:
        """Of its run, which is over and took `seconds`."""
        record = self._log / "record"
        found = json.loads(record.read_text()) if record.exists() else {}
        steps, pace = int(found.get("steps", 0)), found.get("seconds_per_step")
        return Length(seconds, steps, min(seconds, steps * pace) if pace else seconds)

    def told(self) -> str:
        return (self._log / "err").read_text(errors="replace")

    def end(self, code: int) -> End:
        record = self._log / "record"
        weights = json.loads(record.read_text()).get("parameters") if record.exists() else None
        within = (path for path in sorted(self.folder.rglob("*")) if "__pycache__" not in path.parts)
        places = {str(path.relative_to(self.folder)): path for path in within}
        places.update((path, Path(path)) for path in self.outside())
        files = {name: content for name, path in places.items() if (content := _content_of(path)) is not None}
        return End(code, (self._log / "out").read_bytes(), weights, files)

    def outside(self) -> list[str]:
        """What its runs have written, or were about to, that is no part of the copy: named by its whole path, or where
        a link leads."""
        return sorted(self._outside().before)

    def _outside(self) -> Files:
        self.state.mkdir(parents=True, exist_ok=True)  # it ended before it was made
        files = Files(self.state)
        copy = os.path.realpath(self._log.parent) + "/"
        files.before = {path: state for path, state in files.before.items() if not path.startswith(copy)}
        return files

    @contextlib.contextmanager
    def undone_outside(self) -> Iterator[None]:
        """Afterwards what is no part of the copy is what it was before its runs: the user's, and the next run's."""
        try:
            yield
        finally:
            try:
                self._outside().put_back({})
            except OSError as error:
                fail(f"what the program writes outside of the folder cannot be made what it was: {reason_of(error)}", 1)


def _content_of(path: Path) -> bytes | None:
    """None of what is neither a file nor a link, and of what is not there."""
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return path.read_bytes() if path.is_file() else None


def paths_in_use(program: Program) -> tuple[Path, ...]:
    """What is copied wherever it lies: the working folder, and the script."""
    return (Path.cwd(), *([] if program.module else [Path(program.target).resolve()]))
