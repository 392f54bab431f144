"""How often a duel is right: the same program twice, and a planted cost of 5 % found as such.

python benchmarks/power.py [--duels 10]   writes benchmarks/results/power.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alternate import ROOT

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.evidence.speed import noise_floor
from overdrive.machine.inventory import machine, versions
from overdrive.trials.pool import TrialPool
from overdrive.trials.run_duel import run_duel
from overdrive.tuner.duel_runner import CANDIDATE

PROGRAM = """
import torch
torch.manual_seed(0)
x, y = torch.randn(6400, 3, 16, 16), torch.randint(10, (6400,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                            torch.nn.Flatten(), torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10000):
    for a, b in loader:
        loss = torch.nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
SLOW = (("planted", {"share": 0.05}),)
CASES = {"the same program": ((), ()), "5 % slower": ((), SLOW), "5 % faster": (SLOW, ())}


def wilson(hits: int, of: int) -> list[float]:
    """95 % interval of a share."""
    z, share = 1.96, hits / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return [round(max(0.0, centre - half), 3), round(min(1.0, centre + half), 3)]


def write(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """After every duel: a benchmark that is stopped loses nothing."""
    counts = {name: Counter(each["verdict"] for each in duels) for name, duels in found.items()}

    def share(name: str, verdict: str) -> dict[str, Any]:
        of = len(found[name])
        return {"of": of, "found": counts[name][verdict], "95 %": wilson(counts[name][verdict], of) if of else None}

    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "adopted though the same": share("the same program", "FASTER"),
        "5 % slower, adopted": share("5 % slower", "FASTER"),
        "5 % slower, called so": share("5 % slower", "SLOWER"),
        "5 % faster, called so": share("5 % faster", "FASTER"),
        "duels": found,
    }
    (ROOT / "benchmarks" / "results" / "power.json").write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duels", type=int, default=10)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.path.insert(0, str(ROOT / "benchmarks"))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder, TrialPool(also=["planted"]) as pool:
        script = Path(folder) / "train.py"
        script.write_text(PROGRAM)
        program = Program.parse((str(script),))
        for turn in range(options.duels):
            for name, (old, new) in CASES.items():
                began = time.perf_counter()
                duel = run_duel(pool, TrialSpec(program, old), TrialSpec(program, new), CANDIDATE, math.inf)
                assert duel.interval is not None
                found[name].append(
                    {
                        "verdict": duel.verdict.value,
                        "speedup": vars(duel.interval),
                        "pairs": len(duel.pairs),
                        "noise": noise_floor(duel.pairs),
                        "seconds": time.perf_counter() - began,
                    }
                )
                write(found)
                print(f"  {turn + 1}/{options.duels}  {name:18} {duel.verdict} {duel.interval}", flush=True)


if __name__ == "__main__":
    main()
