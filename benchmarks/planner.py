"""How well `overdrive doctor --for --ranks 2` foretells a step under each layout: against real steps of two processes.

python benchmarks/planner.py [--anew]     adds a round to benchmarks/results/planner.json, or begins it anew

In a round the network is measured, and every layout of every program is foretold and then run, by two processes of one
thread each, as `overdrive run --ranks 2` has it on two cores. Of both the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from overdrive.cli.layout import technique_of
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.insight.requirements.ranks import Ranks, foretold, ranks_of
from overdrive.machine.inventory import machine, versions
from overdrive.trials.launchers.ranks import RanksLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "planner.json"
RANKS = 2
LAYOUTS = ("data=2", "shard=2", "tensor=2", "pipeline=2")
PROGRAMS = {
    "mlp": ("benchmarks/models/mlp.py", "--batch-size", "256"),
    "cnn": ("benchmarks/models/cnn.py", "--batch-size", "64"),
    "gpt": ("benchmarks/models/gpt.py", "--layers", "2", "--batch-size", "8", "--context", "64"),
}
_WARM_UP, _STEPS, _BLOCKS = 5, 4, 6


def measured(program: Program, layout: str) -> float:
    """Seconds of a step of two real ranks: of the shortest of some blocks, as steps are measured everywhere."""
    with TrialPool() as pool:
        spec = TrialSpec(program, (technique_of(layout, RANKS),), losses=False)
        trial = Trial(pool, spec, RanksLauncher(RANKS, pool.launcher))
        try:
            trial.first_step()
            trial.run(_WARM_UP)
            return min(trial.run(_STEPS).seconds for _ in range(_BLOCKS)) / _STEPS
        finally:
            trial.stop()


def add(name: str, program: Program, ranks: Ranks, rows: dict[str, dict[str, Any]]) -> None:
    """What each layout of a program came to."""
    for layout in LAYOUTS:
        step = foretold(program, technique_of(layout, RANKS), ranks)
        seconds = measured(program, layout)
        row = rows.setdefault(f"{name} {layout}", {"foretold": [], "measured": [], "communication": []})
        row["foretold"].append(step.seconds)
        row["measured"].append(seconds)
        row["communication"].append(step.communication)
        row["told"] = list(step.said)
        row["error"] = statistics.median(row["foretold"]) / statistics.median(row["measured"]) - 1
        print(
            f"{name:6} {layout:12} foretold {step.seconds * 1e3:7.1f} ms ({step.communication:.0%} waiting), "
            f"measured {seconds * 1e3:7.1f} ms: {step.seconds / seconds - 1:+.0%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anew", action="store_true", help="forget the rounds before")
    here = {"machine": machine(), "versions": versions()}
    del here["machine"]["available_bytes"]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() and not parser.parse_args().anew else {}
    if {name: kept.get(name) for name in here} != here:
        kept = {**here, "dates": [], "load": [], "rows": {}}
    ranks = ranks_of(RANKS, None, quick=False)
    for name, words in PROGRAMS.items():
        add(name, Program.parse([str(ROOT / words[0]), *words[1:]]), ranks, kept["rows"])
    kept["dates"].append(time.strftime("%Y-%m-%d %H:%M"))
    kept["load"].append(os.getloadavg()[0])
    kept["commands"] = {name: " ".join(words) for name, words in PROGRAMS.items()}
    errors = sorted(abs(row["error"]) for row in kept["rows"].values())
    kept |= {"median": statistics.median(errors), "worst": errors[-1]}
    print(f"{len(errors)} layouts: off by {kept['median']:.0%} in the median, by {kept['worst']:.0%} at worst")
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
