"""`overdrive verify --resume`: kills the program at random moments, goes on, and compares the end with an
uninterrupted run's."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from overdrive.cli.line import fail
from overdrive.cli.survive import SEED
from overdrive.core.program import Program

_MOST_BYTES = 500_000_000
_SNAPSHOTS = 20  # in a whole run, about


@dataclass(frozen=True)
class _End:
    """What a run left behind."""

    code: int
    printed: bytes
    weights: str | None
    files: dict[str, bytes]


class _Place:
    """A copy of the working folder, in which a run takes place."""

    def __init__(self, within: Path, name: str, program: Program, seed: str) -> None:
        self.folder, self._state = within / name / "folder", within / name / "run"
        shutil.copytree(os.getcwd(), self.folder, symlinks=True, ignore=shutil.ignore_patterns("*.survive", "*.pyc"))
        self._log = within / name
        self._program = program
        self._environment = {**os.environ, SEED: seed}

    def run(self, every: float, killed_after: float | None = None) -> int | None:
        """Its exit code; None where it was killed."""
        command = [sys.executable, "-m", "overdrive", "run", f"--survive={self._state}", f"--every={every:.3f}s"]
        command += [f"--record={self._log / 'record'}", "--", *(["-m"] if self._program.module else [])]
        command += [self._program.target, *self._program.arguments]
        with open(self._log / "out", "ab") as out, open(self._log / "err", "ab") as errors:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            try:
                return process.wait(killed_after)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):  # its workers, too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def told(self) -> str:
        return (self._log / "err").read_text(errors="replace")

    def end(self, code: int) -> _End:
        record = self._log / "record"
        weights = json.loads(record.read_text()).get("parameters") if record.exists() else None
        files = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
        return _End(code, (self._log / "out").read_bytes(), weights, files)


def verify_resume(program: Program, kills: int, seed: int | None) -> int:
    """The exit code: 0 where the end is the same, 1 where not."""
    size = sum(path.stat().st_size for path in Path.cwd().rglob("*") if path.is_file() and not path.is_symlink())
    if size > _MOST_BYTES:
        fail(f"{os.getcwd()} holds {size / 1e9:.1f} GB, and two copies are made of it: start this in a smaller folder.")
    if seed is None:
        seed = secrets.randbelow(10**6)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="overdrive-resume-") as scratch:
        entropy = secrets.token_hex(16)
        whole, broken = (_Place(Path(scratch), name, program, entropy) for name in ("whole", "broken"))
        began = time.monotonic()
        code = whole.run(1e6)
        seconds = time.monotonic() - began
        assert code is not None
        print(f"The uninterrupted run took {seconds:.1f} s. Kills at moments drawn with --seed {seed}.", flush=True)
        every, killed = max(0.05, seconds / _SNAPSHOTS), 0
        end: int | None = None
        while killed < kills and end is None:
            moment = chance.uniform(0.2, 1.0) * seconds
            end = broken.run(every, moment)
            if end is None:
                killed += 1
                print(f"  killed after {moment:.1f} s", flush=True)
        if end is None:
            end = broken.run(every)
        assert end is not None
        return _compare(whole.end(code), broken.end(end), broken.told(), killed)


def _compare(one: _End, other: _End, told: str, kills: int) -> int:
    gone_on, anew = told.count("overdrive: gone on after"), told.count("overdrive: the run begins from its start")
    for line in dict.fromkeys(line for line in told.splitlines() if "begins from its start" in line):
        print(f"  {line.removeprefix('overdrive: ')}")
    names = sorted(one.files.keys() | other.files.keys())
    differ = [name for name in names if one.files.get(name) != other.files.get(name)]
    same = {
        "exit code": one.code == other.code,
        "standard output": one.printed == other.printed,
        "weights": one.weights == other.weights,
        f"{len(names)} files" + (f" (not {', '.join(differ[:3])})" if differ else ""): not differ,
    }
    for what, equal in same.items():
        print(f"  {'same ' if equal else 'OTHER'}  {what}")
    verdict = "The end is the same" if all(same.values()) else "The end is ANOTHER one"
    print(
        f"{verdict}: killed {kills} times, gone on {gone_on} times in the middle, {anew} times sent back to the start."
    )
    return 0 if all(same.values()) else 1
