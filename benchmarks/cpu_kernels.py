"""Steps with the kernels of our own for a CPU, and without them.

python benchmarks/cpu_kernels.py [--only ROW,...] [--sets 3]

Each row is a program as it is and the same under `fast_max_pool` and `fast_dropout`, without any other technique,
stepped in turn in fresh processes, `--sets` times; the processes are the sample. A row takes two minutes or so. Where a
program has nothing for a kernel to do, both sides are the same, and the ratio says how well that can be told. Writes
benchmarks/results/cpu_kernels.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

from turns import MODELS, Arm, ratio, ratio_text, step_in_turn

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.inventory import machine, versions
from overdrive.trials.pool import TrialPool

TARGET = Path(__file__).parent / "results" / "cpu_kernels.json"
EXAMPLES = Path(__file__).parent.parent / "examples"
KERNELS: tuple[tuple[str, dict[str, Any]], ...] = (("fast_max_pool", {}), ("fast_dropout", {}))
ROWS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "the example's CNN, batch 64": (MODELS / "cnn.py", ("--batch-size", "64")),
    "the example's CNN, batch 512": (MODELS / "cnn.py", ("--batch-size", "512")),
    "MNIST's CNN": (EXAMPLES / "mnist_cnn.py", ("--epochs", "1000")),
    "ResNet-18": (MODELS / "resnet18.py", ("--width", "16", "--batch-size", "128")),
    "GPT": (MODELS / "gpt.py", ("--layers", "4", "--width", "192", "--context", "128", "--batch-size", "16")),
    "LSTM": (MODELS / "lstm.py", ()),
    "MLP": (MODELS / "mlp.py", ()),
}
_BLOCKS = 12  # in each of the fresh processes
_SECONDS = 40.0  # for the blocks of one set of fresh processes: slow programs make fewer


def row(script: Path, words: tuple[str, ...], sets: int) -> dict[str, Any]:
    program = Program(str(script), words)
    plain, ours = Arm("plain", TrialSpec(program)), Arm("kernels", TrialSpec(program, KERNELS))
    with TrialPool() as pool:
        for number in range(sets):
            step_in_turn(pool, [plain, ours], _BLOCKS, time.monotonic() + _SECONDS, seed=number)
    found = ratio(plain, ours)
    return {
        "ms_per_step": {arm.name: 1e3 * arm.seconds_per_step for arm in (plain, ours) if arm.seconds_per_step},
        "times_as_fast": vars(found) if found else None,
        "left_out": ours.left_out,
        "failed": {arm.name: arm.failure for arm in (plain, ours) if arm.failure},
        "load_average": os.getloadavg()[1],
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of rows' names, with commas between")
    parser.add_argument("--sets", type=int, default=3, help="sets of fresh processes")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    wanted = [each.strip().lower() for each in options.only.split(",") if each.strip()]
    rows = json.loads(TARGET.read_text())["rows"] if TARGET.exists() else {}
    for name, (script, words) in ROWS.items():
        if wanted and not any(each in name.lower() for each in wanted):
            continue
        rows[name] = row(script, words, options.sets)
        print(f"{name:32} {ratio_text(rows[name]['times_as_fast'])}  {rows[name]['ms_per_step']}", flush=True)
        TARGET.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
