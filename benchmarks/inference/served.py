"""How many requests a served folder answers, and how soon: python benchmarks/inference/served.py [--rounds 3] [NAME...]

Each program of this folder is exported to ONNX, and served as it is, with two instances, with batches of up to eight,
and with both, in random turns. A round has ten seconds of more requests than any of them answers (what is answered in a
second is its capacity), and ten at half of what it answered as it is (p50 and p99, counted from when each request was
to be sent). The sender shares the machine with the server. Writes benchmarks/results/served.json; five minutes for
each program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from overdrive.machine.inventory import summary, versions

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "served.json"
PROGRAMS = {
    "perceptron": ("perceptron.py", "--requests", "200"),
    "encoder, 64 tokens": ("encoder.py", "--requests", "40", "--batch", "2"),
    "resnet18, 32": ("resnet18.py", "--pictures", "128", "--batch", "4", "--size", "32"),
    "resnet18, 224": ("resnet18.py", "--pictures", "48", "--batch", "2"),
}
SIDES = {
    "as it is": (),
    "2 instances": ("--instances", "2"),
    "batch 8": ("--batch", "8"),
    "both": ("--instances", "2", "--batch", "8"),
}
SECONDS = 10
TOO_MANY = {"perceptron": 4000, "encoder, 64 tokens": 1500, "resnet18, 32": 1500, "resnet18, 224": 200}  # a second


def overdrive(*words: str, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "overdrive", *words], cwd=cwd, check=True, stdout=sys.stderr)


def measured(folder: Path, side: str, rate: float) -> dict[str, Any]:
    told = folder.parent / "told.json"
    overdrive(
        *("serve", folder.name, *SIDES[side], "--measure", f"{rate:g}", "--seconds", str(SECONDS)),
        *("--json", str(told)),
        cwd=folder.parent,
    )
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def row(name: str, rounds: int, place: Path) -> dict[str, Any]:
    folder = place / "served"
    overdrive("export", "--to", "onnx", "-o", str(folder), *PROGRAMS[name], cwd=HERE)
    chance = random.Random(0)
    most: dict[str, list[float]] = {side: [] for side in SIDES}
    soon: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    half = 0.0
    for number in range(rounds):
        for side in chance.sample(list(SIDES), len(SIDES)) if number else list(SIDES):
            most[side].append(measured(folder, side, TOO_MANY[name])["answered"] / SECONDS)
            half = half or most["as it is"][0] / 2
            soon[side].append(measured(folder, side, half))
    return {
        side: {
            "answered_a_second": [round(each, 1) for each in most[side]],
            "at_a_second": round(half, 1),
            "p50_ms": [round(1e3 * each["p50"]["estimate"], 3) for each in soon[side]],
            "p99_ms": [round(1e3 * each["p99"]["estimate"], 3) for each in soon[side] if each["p99"]],
            "not_answered": sum(each["sent"] - each["answered"] for each in soon[side]),
            "times_as_many": round(statistics.median(most[side]) / statistics.median(most["as it is"]), 2),
        }
        for side in SIDES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the programs whose names begin so; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = json.loads(RESULTS.read_text())["programs"] if RESULTS.exists() else {}
    for name in PROGRAMS:
        if args.names and not any(name.startswith(each) for each in args.names):
            continue
        with tempfile.TemporaryDirectory() as place:
            rows[name] = row(name, args.rounds, Path(place))
        print(name, json.dumps(rows[name], indent=1), flush=True)
        told = {"date": datetime.date.today().isoformat(), "machine": vars(summary()), "versions": versions()}
        RESULTS.write_text(json.dumps({**told, "programs": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
