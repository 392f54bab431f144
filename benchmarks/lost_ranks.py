"""What a lost rank costs under `overdrive run --survive --ranks N`: ranks are killed at random moments of a run.

python benchmarks/lost_ranks.py [--ranks 2,4] [--kills 25] [--every 2] [--seed 1]

A small convolutional network on made pictures. One run is left alone; in another of as many ranks one of them, drawn at
random, is killed at a random moment, again and again. What a kill costs is the time from it to the next line that was
not printed before, less the usual time between two lines. Writes benchmarks/results/lost_ranks.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import psutil

from overdrive.machine.inventory import machine, versions

ROOT = Path(__file__).resolve().parent.parent
TRAIN = """
import torch
torch.manual_seed(0)
nn = torch.nn
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.LazyLinear(10))
model(torch.zeros(2, 3, 32, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
for step in range(STEPS):
    pictures, classes = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), classes)
    loss.backward(); optimizer.step()
    print(step, f"{loss.item():.9f}", flush=True)
print(*(f"{each.double().sum().item():.17g}" for each in model.parameters()))
"""


class Run:
    """A run under way, and the lines that it prints with the moments at which they came."""

    def __init__(self, folder: Path, ranks: int, every: float) -> None:
        words = ("run", "--survive=run", f"--every={every}s", "--ranks", str(ranks), "train.py")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "overdrive", *words],
            cwd=folder,
            env={**os.environ, "OVERDRIVE_SURVIVE_SEED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.told: list[str] = []
        self._came: Queue[tuple[float, str] | None] = Queue()
        self._threads = [Thread(target=self._read), Thread(target=self._listen)]
        for each in self._threads:
            each.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._came.put((time.monotonic(), line))
        self._came.put(None)

    def _listen(self) -> None:
        assert self.process.stderr
        self.told.extend(self.process.stderr)

    def next(self, timeout: float | None = None) -> float | None:
        """When the next line came; None where there is none any more, or none within that time."""
        try:
            came = self._came.get(timeout=timeout)
        except Empty:
            return None
        if came is None:
            self._came.put(None)
            return None
        self.lines.append(came[1])
        return came[0]

    def until(self, moment: float) -> bool:
        """Whether it is still under way then."""
        while (left := moment - time.monotonic()) > 0:
            if self.next(left) is None and time.monotonic() < moment:
                return False
        return True

    def ranks(self) -> list[psutil.Process]:
        return [each for each in psutil.Process(self.process.pid).children() if each.is_running()]

    def end(self) -> int:
        while self.next() is not None:
            pass
        for each in self._threads:
            each.join()
        return self.process.wait()


def killed(folder: Path, ranks: int, kills: int, every: float, chance: random.Random) -> dict[str, Any]:
    run = Run(folder, ranks, every)
    costs: list[float] = []
    beat: list[float] = []
    last = run.next()
    while len(costs) < kills and last is not None:
        for _ in range(20):
            if (came := run.next()) is None:
                break
            beat.append(came - last)
            last = came
        if not run.until(time.monotonic() + chance.uniform(0, 2 * every)):
            break
        os.kill(chance.choice(run.ranks()).pid, signal.SIGKILL)
        began = time.monotonic()
        while (last := run.next()) is not None and last < began + 0.5:  # what the others have printed by then
            pass
        if last is not None:
            costs.append(last - began - statistics.median(beat))
    code = run.end()
    return {"code": code, "costs": costs, "lines": run.lines, "lost": sum("is lost" in line for line in run.told)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two snapshots")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=ROOT / "benchmarks" / "results" / "lost_ranks.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="lost-ranks-") as scratch:
            ends = []
            for name, kills in (("whole", 0), ("killed", options.kills)):
                folder = Path(scratch) / name
                folder.mkdir()
                (folder / "train.py").write_text(TRAIN.replace("STEPS", str(options.steps)))
                ends.append(killed(folder, ranks, kills, options.every, random.Random(options.seed)))
        whole, broken = ends
        results[str(ranks)] = {
            "steps": options.steps,
            "seconds between snapshots": options.every,
            "killed": len(broken["costs"]),
            "told as lost": broken["lost"],
            "the same output": broken["code"] == whole["code"] == 0 and broken["lines"] == whole["lines"],
            "seconds lost": [round(each, 2) for each in broken["costs"]],
        }
        print(ranks, results[str(ranks)], flush=True)
        options.to.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
