"""What `overdrive run` costs where it has nothing to do: no plan, or one under which no technique is.

    python benchmarks/no_plan.py [--rounds 8] [--width 64] [--epochs 60]   writes benchmarks/results/no_plan.json

An MLP of four layers, whole runs in turn as `python` and under `overdrive run --no-plan`, of two lengths: what the
longer one takes more is the cost of its steps, what is left is that of the start and the end.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from dataclasses import asdict

from alternate import OVERDRIVE, ROOT, Arm, alternate, ratio

from overdrive.machine.inventory import machine, versions

RESULTS = ROOT / "benchmarks" / "results" / "no_plan.json"
_STEPS = 8192 // 128  # of an epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--width", type=int, default=64, help="of a layer; 64: steps of less than 1 ms")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    lengths = (1, options.epochs)
    arms = []
    for epochs in lengths:
        script = ("benchmarks/models/mlp.py", "--width", str(options.width), "--epochs", str(epochs))
        arms.append(Arm(f"python, {epochs}", (sys.executable, *script)))
        arms.append(Arm(f"overdrive, {epochs}", (*OVERDRIVE, "run", "--no-plan", *script)))
    seconds = alternate(arms, options.rounds, ROOT)
    short, long = lengths
    of_steps = {
        arm: [more - less for less, more in zip(seconds[f"{arm}, {short}"], seconds[f"{arm}, {long}"], strict=True)]
        for arm in ("python", "overdrive")
    }
    steps = (long - short) * _STEPS
    start = [
        other - one for one, other in zip(seconds[f"python, {short}"], seconds[f"overdrive, {short}"], strict=True)
    ]
    found = {
        "date": datetime.date.today().isoformat(),
        "width": options.width,
        "milliseconds_per_step": round(1000 * statistics.median(of_steps["python"]) / steps, 3),
        # Times as long as plain Python's.
        "step": {name: round(value, 4) for name, value in asdict(ratio(of_steps, "overdrive", "python")).items()},
        "start_seconds": round(statistics.median(start), 3),
        "seconds": {name: [round(each, 2) for each in row] for name, row in seconds.items()},
        "machine": machine(),
        "versions": versions(),
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("milliseconds_per_step", "step", "start_seconds")}))


if __name__ == "__main__":
    main()
