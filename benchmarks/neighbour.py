"""Whether a tune beside a noisy neighbour finds the plan of a quiet machine. Writes benchmarks/results/neighbour.json.

python benchmarks/neighbour.py [--tunes 10] [--budget 150s]

The first tune is alone; the others have another process beside them that takes a core on and off, 1 s each in the
mean, at random. Each begins without anything kept from before; images and tables of samples stay, as they would. The
same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Process
from pathlib import Path
from typing import Any

from alternate import OVERDRIVE, ROOT

from overdrive.machine.inventory import machine, versions

RESULTS = ROOT / "benchmarks" / "results" / "neighbour.json"
PROGRAM = ROOT / "examples" / "cifar_cnn.py"
_MEAN = 1.0  # seconds that it works, and then rests


def on_and_off(seed: int) -> None:
    chance = random.Random(seed)
    while True:
        until = time.monotonic() + chance.expovariate(1 / _MEAN)
        while time.monotonic() < until:
            pass
        time.sleep(chance.expovariate(1 / _MEAN))


@contextlib.contextmanager
def neighbour(seed: int) -> Iterator[None]:
    """Seed 0: none."""
    process = Process(target=on_and_off, args=(seed,), daemon=True)
    if seed:
        process.start()
    try:
        yield
    finally:
        if seed:
            process.kill()
            process.join()


def tuned(seed: int, budget: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, neighbour(seed):
        told = Path(folder) / "tune.json"
        words = ("tune", "--budget", budget, "-o", str(Path(folder) / "plan.toml"), "--json", str(told), str(PROGRAM))
        began = time.perf_counter()
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        subprocess.run((*OVERDRIVE, *words), check=True, env=environment, stdout=subprocess.DEVNULL)
        found = json.loads(told.read_text())
    return {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "neighbour": bool(seed),
        "plan": sorted(each["name"] for each in found["techniques"]),
        "verdict": found["verdict"],
        "speedup": found["speedup"] or found["unconfirmed"],
        "confirmed": bool(found["speedup"]),
        "noise_floor": found["noise_floor"],
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tunes", type=int, default=10)
    parser.add_argument("--budget", default="150s")
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: list[dict[str, Any]] = known["rows"] if known.get("budget") == options.budget else []
    for seed in range(len(rows), options.tunes + 1):
        rows.append(tuned(seed, options.budget))
        print(json.dumps(rows[-1]), flush=True)
        write(rows, options.budget)


def write(rows: list[dict[str, Any]], budget: str) -> None:
    """After every tune: a benchmark that is stopped loses nothing."""
    quiet, *beside = rows
    gains = [math.log(each["speedup"]["estimate"]) if each["plan"] and each["speedup"] else 0.0 for each in rows]
    result = {
        "date": datetime.date.today().isoformat(),
        "program": str(PROGRAM.relative_to(ROOT)),
        "budget": budget,
        "same_plan": sum(each["plan"] == quiet["plan"] for each in beside),
        "tunes": len(beside),
        "share_of_the_gain": [round(gain / gains[0], 3) for gain in gains[1:]] if gains[0] else [],
        "machine": machine(),
        "versions": versions(),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
