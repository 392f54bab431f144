"""The commands from Python: `overdrive.tune`, `overdrive.run`, and `overdrive.using` for a block of code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overdrive.core.tune_result import TuneResult
    from overdrive.worker.block_of_code import BlockOfCode


class CannotTune(Exception):
    """The program could not be tuned; the message is the reason, for people."""


def tune(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    contract: str = "rounding",
    budget: float | None = None,
    runs: int = 10,
    output: str | Path | None = None,
    techniques: Sequence[str] = (),
    objective: str = "time",
) -> TuneResult:
    """Find the fastest plan that keeps the contract, as `overdrive tune` does, which is started for it.

    The plan and its report are written beside the script, or to `output`.

    Args:
        contract: "exact", "rounding" or "statistical": how much may change.
        budget: seconds to spend at most; None: as long as it pays over `runs` runs, and ten minutes at most.
        techniques: try these alone; empty: all.
        objective: "time", "memory", "time-under-memory=SIZE", "latency" or "p99=20ms".

    Raises:
        CannotTune: the program failed, or could not be tuned.
    """
    from overdrive.core.scratch import passing
    from overdrive.core.tune_result import TuneResult
    from overdrive.report.reading import read

    with passing("overdrive-") as folder:
        path = folder / "result.json"
        options = ["--contract", contract, "--runs", str(runs), "--objective", objective, "--json", str(path)]
        options += ["--budget", f"{budget:g}s"] if budget else []
        options += ["--output", str(output)] if output else []
        options += ["--techniques", ",".join(techniques)] if techniques else []
        done = _command("tune", *options, str(script), *arguments, quiet=True)
        if done.returncode:
            raise CannotTune(_last_line(done.stderr))
        return read(TuneResult, json.loads(path.read_text(encoding="utf-8")))


def run(script: str | Path, arguments: Sequence[str] = (), *, plan: str | Path | None = None) -> int:
    """Run the whole program under its plan, in a process of its own; returns its exit code.

    Args:
        plan: where it lies, if not beside the script.
    """
    options = ["--plan", str(plan)] if plan else []
    return _command("run", *options, str(script), *arguments).returncode


def using(plan: str | Path) -> BlockOfCode:
    """A block of code, in a notebook or a library, under a plan.

    Example:
        with overdrive.using("train.overdrive.toml"):
            model, optimizer = make()  # make the optimizer inside: that is where models are altered
            train(model, optimizer)

    Techniques that must be there before the process starts are left out, with a line that says so. Where the block made
    no optimizer, a line says that too: nothing was altered then that stands before a model is trained.

    Raises:
        overdrive.core.plan.PlanError: the plan cannot be used; the message names the line.
        OSError: it cannot be read.
    """
    from overdrive.core.plan import Plan
    from overdrive.core.plan.removed import REMOVED
    from overdrive.techniques.catalogue import catalogue
    from overdrive.worker.block_of_code import BlockOfCode
    from overdrive.worker.saying import announce

    read = Plan.read(Path(plan), catalogue())
    for name in read.removed:
        announce(name, REMOVED[name])
    return BlockOfCode([(each.name, each.settings) for each in read.techniques], read.inference)


def _command(*words: str, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "overdrive", *words], text=True, capture_output=quiet, check=False)


def _last_line(errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("overdrive: ") if lines else "overdrive tune gave no reason."
