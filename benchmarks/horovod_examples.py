"""Horovod's own examples under real Horovod and under `overdrive run --ranks 2`, which answers in its place.

python benchmarks/horovod_examples.py --examples FOLDER --data FOLDER [--rounds 3]

In an environment with Horovod 0.28.1 (`HOROVOD_WITH_GLOO=1`; against PyTorch 2.13 with `CMAKE_CXX_STANDARD 20` in its
two CMake files). The first folder has pytorch_mnist.py and pytorch_synthetic_benchmark.py, as they are; the other one
MNIST as torchvision keeps it. Two processes of one thread each, the ways in turn. Told are seconds of the whole run and
how far the losses lie apart that rank 0 prints. Writes benchmarks/results/horovod.json. (Not named `horovod.py`: from
this folder Python would take it for Horovod.)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from overdrive.machine.inventory import machine

RESULTS = Path(__file__).parent / "results" / "horovod.json"
LAUNCH = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
OVERDRIVE = [sys.executable, "-m", "overdrive", "run", "--no-plan"]
WAYS = {
    "horovod": [*LAUNCH, sys.executable],
    "overdrive": [*OVERDRIVE, "--ranks", "2", "--engine", "overdrive"],
    "overdrive, real horovod": [*LAUNCH, *OVERDRIVE, "--engine", "horovod"],
}
SYNTHETIC = "--model resnet18 --batch-size 8 --num-warmup-batches 2 --num-batches-per-iter 3 --num-iters 4"
_RANK = re.compile(r"^\[(\d+)\]<stdout>: ?")
_LOSS = re.compile(r"(?:Loss|loss): ([\d.]+)")
_SPEED = re.compile(r"^Img/sec per CPU: ([\d.]+)", re.MULTILINE)


def ran(way: str, words: list[str]) -> tuple[float, str]:
    """Seconds, and what rank 0 printed."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*WAYS[way], *words], capture_output=True, text=True, env=environment, timeout=600)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"{way} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    found = [(_RANK.match(line), line) for line in done.stdout.splitlines()]
    own = [line[mark.end() if mark else 0 :] for mark, line in found if mark is None or mark[1] == "0"]
    return seconds, "\n".join(own)


def measured(words: list[str], rounds: int) -> dict[str, object]:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    told: dict[str, str] = {}
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in [*WAYS][:: 1 if number % 2 == 0 else -1]:
            took, told[way] = ran(way, words)
            seconds[way].append(took)
            speeds[way] += [float(each) for each in _SPEED.findall(told[way])]
            print(f"{words[0]}: {way}: {took:.1f} s {speeds[way][-1:]}", flush=True)
    losses = {way: [float(each) for each in _LOSS.findall(text)] for way, text in told.items()}
    assert len({len(each) for each in losses.values()}) == 1, losses
    expected = losses["horovod"]
    return {
        way: {
            "seconds": statistics.median(seconds[way]),
            "all": seconds[way],
            "images a second and rank": speeds[way],
            "losses": len(losses[way]),
            "losses apart": max((abs(a - b) for a, b in zip(losses[way], expected, strict=True)), default=None),
            "last losses": losses[way][-3:],
        }
        for way in WAYS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    mnist = [str(options.examples / "pytorch_mnist.py"), "--epochs", "1", "--data-dir", str(options.data)]
    synthetic = [str(options.examples / "pytorch_synthetic_benchmark.py"), *SYNTHETIC.split()]
    load = os.getloadavg()[0]
    rows = {Path(words[0]).name: measured(words, options.rounds) for words in (mnist, synthetic)}
    here = {"machine": machine(), "date": time.strftime("%Y-%m-%d %H:%M"), "load": load}
    del here["machine"]["available_bytes"]
    RESULTS.write_text(json.dumps({"rows": rows, **here}, indent=1) + "\n")


if __name__ == "__main__":
    main()
