"""What `overdrive run` costs a step where there is no plan: a session without techniques, as that has it.

    python benchmarks/no_plan.py [--rounds 60] [--width 16]   writes benchmarks/results/no_plan.json

One process, one MLP with a `DataLoader`; blocks of steps in turn, in random order, within such a session and without.
Whole runs differ by 5 to 30 % on a shared machine, blocks of one process by much less.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import random
import time
from dataclasses import asdict

import torch
from alternate import ROOT
from models import mlp
from torch.utils.data import DataLoader, TensorDataset

from overdrive.evidence.speed import Pair, speedup
from overdrive.machine.inventory import machine, versions
from overdrive.worker.clock import clock_for
from overdrive.worker.recording import Recorder
from overdrive.worker.session import Session
from overdrive.worker.watching.losses import LossWatch

RESULTS = ROOT / "benchmarks" / "results" / "no_plan.json"
_LEAD, _STEPS = 20, 200  # of a block: before it is timed, and timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--width", type=int, default=16, help="of a layer; 16: steps of less than 1 ms")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args = mlp.arguments().parse_args(["--width", str(options.width), "--batch-size", "16", "--device", "cpu"])
    loader = DataLoader(TensorDataset(*mlp.make_data(args)), args.batch_size, shuffle=True)
    model = mlp.make_model(args)
    optimizer = mlp.make_optimizer(model)

    def block(within: bool) -> float:
        """Seconds a step."""
        recorder = Recorder(clock=clock_for(False))
        watch = LossWatch(None, lambda: recorder.clock.steps, print)
        with Session((), [recorder, watch]) if within else contextlib.nullcontext():
            for step, (images, labels) in enumerate(loader):
                if step == _LEAD:
                    began = time.perf_counter()
                elif step == _LEAD + _STEPS:
                    break
                loss = mlp.loss_of(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            seconds = (time.perf_counter() - began) / _STEPS
        assert not within or recorder.clock.steps >= _STEPS
        return seconds

    block(True), block(False)
    chance = random.Random(0)
    pairs = []
    for turn in range(options.rounds):
        first = chance.random() < 0.5
        one, other = block(first), block(not first)
        within, without = (one, other) if first else (other, one)
        pairs.append(Pair(turn // 10, _STEPS, within, without, True))
    found = {
        "date": datetime.date.today().isoformat(),
        "milliseconds_per_step": round(1000 * sorted(pair.seconds_b for pair in pairs)[len(pairs) // 2], 3),
        # Times as long as without.
        "step": {name: round(value, 4) for name, value in asdict(speedup(pairs)).items()},
        "pairs": len(pairs),
        "machine": machine(),
        "versions": versions(),
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: found[name] for name in ("milliseconds_per_step", "step")}))


if __name__ == "__main__":
    main()
