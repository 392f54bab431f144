"""How often the proof of level `rounding` refuses another kernel for the same sums, over eight networks.

    python benchmarks/legal.py [--seeds 2] [--only NETWORK,...]   writes benchmarks/results/legal.json

In real trials, as a tune makes them. What is in the file already is not tried again. Needs torchvision, timm and
transformers beside PyTorch (see `public/run.py`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from alternate import ROOT
from legal_networks import NETWORKS

from overdrive.core.facts import Facts
from overdrive.core.ledger import Ledger
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.machine.cpu import granted_cores
from overdrive.machine.inventory import machine, versions
from overdrive.proof.prover import Prover
from overdrive.trials.checkpoint import TuneCheckpoint
from overdrive.trials.pool import TrialPool
from overdrive.trials.untimed import UntimedRunner

RESULTS = ROOT / "benchmarks" / "results" / "legal.json"
_STEP = 0.1  # s, about that of these networks
# By technique and settings, or by variables of the process.
CHANGES: dict[str, tuple[tuple[tuple[str, dict[str, Any]], ...], dict[str, str]]] = {
    "channels_last": ((("channels_last", {}),), {}),
    "PyTorch's own convolutions": ((("native_kernels", {}),), {}),
    "sums in another order": ((("other_order", {}),), {}),
    "another number of threads": ((("threads", {"count": 1 if granted_cores() > 1 else 2}),), {}),
    "fused optimizer": ((("fused_optimizer", {"implementation": "fused"}),), {}),
    "foreach optimizer": ((("fused_optimizer", {"implementation": "foreach"}),), {}),
    "compiled": ((("compile", {}),), {}),
    "MKL for AVX2": ((), {"MKL_CBWR": "AVX2"}),
    "MKL for any processor": ((), {"MKL_CBWR": "COMPATIBLE"}),
    "oneDNN for AVX2": ((), {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    "oneDNN for SSE4.1": ((), {"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "PyTorch's kernels for AVX2": ((), {"ATEN_CPU_CAPABILITY": "avx2"}),
    "PyTorch's kernels for any processor": ((), {"ATEN_CPU_CAPABILITY": "default"}),
}


def judged(network: str, seed: int, changes: list[str]) -> Iterator[dict[str, Any]]:
    program = Program.parse((str(ROOT / "benchmarks" / "legal_networks.py"), network, str(seed)))
    plain = TrialSpec(program)
    with TrialPool(also=["legal_changes"]) as pool:
        prover = Prover(UntimedRunner(pool), TuneCheckpoint(Ledger(), program, "legal"), Facts(step_seconds=_STEP))
        for name in changes:
            techniques, environment = CHANGES[name]
            began = time.perf_counter()
            check = prover.rounding(plain, replace(plain, techniques=techniques, environment=environment))
            row = {
                "network": network,
                "seed": seed,
                "change": name,
                "level": str(check.level) if check.level else None,
                "sentence": check.sentence,
                "seconds": round(time.perf_counter() - began, 1),
            }
            print(f"{network:20} {seed} {name:36} {row['level']}  {check.sentence}", flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default=",".join(NETWORKS))
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    sys.path.insert(0, str(ROOT / "benchmarks"))
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": [], "rows": []}
    runs: list[dict[str, Any]] = found["runs"]
    rows: list[dict[str, Any]] = found["rows"]
    now = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
    done = {(row["network"], row["seed"], row["change"]) for row in rows}
    for seed in range(1, options.seeds + 1):
        for network in options.only.split(","):
            if left := [each for each in CHANGES if (network, seed, each) not in done]:
                if now not in runs:
                    runs.append(now)
                for row in judged(network, seed, left):
                    rows.append({"run": runs.index(now), **row})
                    write(runs, rows)
    print(json.dumps(dict(summary(rows).items()), indent=1))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    nothing = [row for row in rows if "does nothing" in row["sentence"]]
    tried = [row for row in rows if row not in nothing]
    return {
        "tried": len(tried),
        "refused": [row for row in tried if row["level"] is None],
        "nothing to do": len(nothing),
    }


def write(runs: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    """After every change: a benchmark that is stopped loses nothing."""
    RESULTS.write_text(json.dumps({"summary": summary(rows), "runs": runs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
