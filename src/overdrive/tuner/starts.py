"""How long the user's own commands take until his code begins: `python SCRIPT`, and `overdrive run` with the plan.

A trial gets there by a way of its own, in 0.33 s, where `python` takes 0.02 s and `overdrive run` 0.25 s (two quiet
cores). Of a run of a few seconds that is much, so both commands are timed with a script that does nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from overdrive.core import scratch
from overdrive.core.contract import Contract
from overdrive.core.plan import Plan, PlannedTechnique
from overdrive.core.settings import Chosen
from overdrive.machine.command import ask
from overdrive.techniques.catalogue import catalogue

_TIMES = 3  # of which the shortest counts: whatever disturbs makes it longer
_LONGEST = 10.0  # seconds; what takes longer is not itself
_SCRIPT = "import time\nprint(time.monotonic())\n"  # one clock for all processes of a machine


@dataclass(frozen=True)
class Starts:
    """Seconds from the start of a process to the beginning of the program's code."""

    before: float
    after: float


def starts_under(techniques: Iterable[Chosen], inference: bool = False) -> Starts | None:
    """Of a run as it is, and of one under a plan of these; None where one of them does not tell."""
    known = catalogue()
    planned = (PlannedTechnique(name, each, known[name].contract_with(each)) for name, each in techniques)
    plan = Plan("start.py", Contract.OPEN, tuple(planned), inference=inference)
    with scratch.passing("overdrive-start-") as folder:
        script, file = folder / plan.program, folder / "plan.toml"
        script.write_text(_SCRIPT)
        file.write_text(plan.dumps())
        run = ("-m", "overdrive", "run", "--plan", str(file))
        before, after = _seconds(script), _seconds(script, *run)
        for _ in range(1, _TIMES):
            before, after = min(before, _seconds(script)), min(after, _seconds(script, *run))
    return Starts(before, after) if max(before, after) < math.inf else None


def _seconds(script: Path, *words: str) -> float:
    """Infinite where it does not tell."""
    began = time.monotonic()
    told = (ask([sys.executable, *words, str(script)], _LONGEST) or "").split()[:1]  # of several ranks, the first
    try:
        return float(*told) - began if told else math.inf
    except ValueError:
        return math.inf
