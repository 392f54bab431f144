"""When a statistical proof should look: rules of looking held against the same runs of the zoo.

python benchmarks/looks.py [--repetitions 2] [--orders 4] [--kept FOLDER]   writes benchmarks/results/looks.json

Every specimen of tests/zoo whose inputs are the original's is run once under 20 seeds. Each rule then judges these runs
as a proof would come to them, in several orders of the seeds; orders share their runs, so that shares over orders are
no independent trials.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.core.json_data import from_json, to_json  # noqa: E402
from overdrive.core.trial_spec import TrialSpec  # noqa: E402
from overdrive.evidence.equivalence import Check  # noqa: E402
from overdrive.evidence.margin import margin_from  # noqa: E402
from overdrive.evidence.registration import LOOKS, SPENT, ArmRun, Registration  # noqa: E402
from overdrive.evidence.statistical import judge  # noqa: E402
from overdrive.machine.inventory import machine, versions  # noqa: E402

SEEDS = range(1, 21)
APART = 1000  # between these and the seeds of a harmless candidate that agrees with the original in none
FOREVER = 1e12
# Looks, what each may err by, and whether the margin is told by as many runs as the look has, or by those of the first.
RULES = {
    "10, 16": ((10, 16), (0.01, 0.047), False),
    ", ".join(map(str, LOOKS)): (LOOKS, SPENT, True),
    "7, 10, 16": ((7, 10, 16), (0.006, 0.012, 0.044), True),
}
Arms = dict[str, list[Any]]


def collect(job: tuple[int, str]) -> dict[str, Arms]:
    """Runs of one program and its specimens, by kind and name; "" is the original."""
    number, program = job
    import torch

    from tests.zoo.harness import InProcess
    from tests.zoo.table import DEFECTS, HARMLESS

    torch.set_num_threads(1)
    promised = [kind for kind in DEFECTS if Contract.STATISTICAL.rank <= kind.contract.rank]
    groups = {
        "defects": promised,
        "defects that other levels promise": [kind for kind in DEFECTS if kind not in promised],
        "harmless": [kind for kind in HARMLESS if kind.contract is Contract.STATISTICAL],
    }
    with tempfile.TemporaryDirectory() as folder:
        prover = InProcess(program, Path(folder), seed=100_000 * number)
        proof, plain = prover.by_seeds, prover.plain

        def arm(spec: TrialSpec, seeds: range = SEEDS, apart: int = 0) -> list[Any]:
            return [to_json(replace(run, seed=run.seed - apart)) for run in proof._arm(spec, seeds, FOREVER)]

        found: dict[str, Arms] = {"": {"": arm(plain)}}
        for group, kinds in groups.items():
            found[group] = {}
            for kind in kinds:
                spec = TrialSpec(plain.program, ((kind.name, {}),))
                if kind.program == program and not isinstance(proof._runs.same_inputs(plain, spec), Check):
                    found[group][kind.name] = arm(spec)
        others = range(SEEDS.start + APART, SEEDS.stop + APART)
        found["harmless"][f"{program} under other seeds"] = arm(plain, others, APART)
    return found


def registration(rule: tuple[Any, Any, bool], original: list[ArmRun]) -> Registration:
    told = margin_from(original)
    looks, spent, _ = rule
    margin = {"margin": told.value, "margin_rule": told.rule, "margin_runs": told.runs, "strict": told.strict}
    seeds = tuple(range(1, looks[-1] + 1))
    noise = {"spread": told.spread, "noise": told.noise}
    return Registration("training loss", 0, True, seeds, looks, spent=spent, worse=1, **margin, **noise)


def verdict(rule: tuple[Any, Any, bool], original: list[ArmRun], candidate: list[ArmRun]) -> tuple[str, int]:
    """What a proof by this rule comes to, and after how many runs an arm."""
    looks, _, anew = rule
    for look in looks:
        known = registration(rule, original[: look if anew else looks[0]])
        outcome = judge(known, original[:look], candidate[:look])
        if outcome.equivalent is not None:
            break
    return {True: "passes", False: "refused", None: "not established"}[outcome.equivalent], look


def judged(found: dict[str, Arms], orders: int) -> list[dict[str, Any]]:
    original = [from_json(ArmRun, each) for each in found[""][""]]
    rows = []
    for group, arms in found.items():
        for name, arm in arms.items() if group else ():
            candidate = [from_json(ArmRun, each) for each in arm]
            for order in range(orders):
                places = random.Random(order).sample(range(len(SEEDS)), LOOKS[-1])
                one, other = (
                    [replace(runs[place], seed=seed) for seed, place in enumerate(places, start=1)]
                    for runs in (original, candidate)
                )
                for rule, how in RULES.items():
                    told, runs = verdict(how, one, other)
                    rows.append({"group": group, "name": name, "rule": rule, "verdict": told, "runs": runs})
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in rows:
        groups[each["group"], each["rule"]].append(each)
    told: dict[str, Any] = defaultdict(dict)
    for (group, rule), mine in groups.items():
        shares = {
            name: round(sum(each["verdict"] == name for each in mine) / len(mine), 4)
            for name in ("passes", "refused", "not established")
        }
        runs = sum(each["runs"] for each in mine) / len(mine)
        told[group][rule] = {**shares, "runs an arm": round(runs, 2), "judged": len(mine)}
    return dict(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=2, help="programs of other first weights and batches")
    parser.add_argument("--orders", type=int, default=4)
    parser.add_argument("--kept", type=Path, help="where the runs are kept, and taken from where they are there")
    options = parser.parse_args()
    jobs = [(number, program) for number in range(21, 21 + options.repetitions) for program in ("images", "rows")]
    rows = []
    with get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        known = [_kept(options.kept, job) for job in jobs]
        new = iter(pool.imap(collect, [job for job, there in zip(jobs, known, strict=True) if there is None]))
        for job, there in zip(jobs, known, strict=True):
            found = there or next(new)
            if options.kept and there is None:
                options.kept.mkdir(parents=True, exist_ok=True)
                _place(options.kept, job).write_text(json.dumps(found))
            rows += judged(found, options.orders)
    result = {"summary": summary(rows), "machine": machine(), "versions": versions(), "rows": rows}
    (ROOT / "benchmarks" / "results" / "looks.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=2))


def _place(folder: Path, job: tuple[int, str]) -> Path:
    return folder / f"{job[1]}_{job[0]}.json"


def _kept(folder: Path | None, job: tuple[int, str]) -> dict[str, Arms] | None:
    return json.loads(_place(folder, job).read_text()) if folder and _place(folder, job).exists() else None


if __name__ == "__main__":
    main()
