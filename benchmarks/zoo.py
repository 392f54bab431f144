"""False alarms and misses of each level of the proof over the zoo in tests/zoo. Writes benchmarks/results/zoo.json.

python benchmarks/zoo.py [--repetitions 20] [--statistical 20] [--unpromised 0] [--processes 2] [--go-on]

A repetition is another seed of the programs: other first weights, batches and augmentation. Every defect is tried at
every level that promises to catch it; every harmless technique at every level that promises to let it pass.
`refused` at the statistical level is a verdict; `not established` says that the seeds were too few. What the file has
of levels that are not run (0 repetitions) stays. `--go-on` keeps all of it, and tries only what it has not.
`--unpromised` tries at the statistical level what only the stricter levels promise to catch; it is counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

from overdrive.core.contract import Contract  # noqa: E402
from overdrive.machine.inventory import machine, versions  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
STATISTICAL = Contract.STATISTICAL
OTHER_SEEDS = 100_000  # apart: a repetition's programs must not share a seed with another's


Job = tuple[int, str, bool, str, frozenset[tuple[str, str]]]


def repetition(job: Job) -> list[dict[str, Any]]:
    """Cases of one program under one seed of its own: those of the statistical level, or the others; of one sort.

    The sorts are `defects`, `harmless` and `unpromised`. Without those that are known already, by name and level.
    """
    number, program, statistical, sort, known = job
    import torch

    from tests.zoo.harness import InProcess
    from tests.zoo.table import DEFECTS, HARMLESS, must_catch, must_pass

    torch.set_num_threads(1)
    defects = sort != "harmless"
    cases = must_catch(DEFECTS) if defects else must_pass(HARMLESS)
    if sort == "unpromised":
        cases = [(kind, STATISTICAL) for kind in DEFECTS if (kind, STATISTICAL) not in cases]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        prover = InProcess(program, Path(folder), seed=OTHER_SEEDS * number)
        for kind, level in cases:
            if kind.program != program or (level is STATISTICAL) is not statistical:
                continue
            if statistical and not defects and kind.contract is not STATISTICAL:
                continue  # the same runs as the original's: that they are equal says nothing
            if (kind.name, str(level)) in known:
                continue
            began = time.perf_counter()
            check = prover.judged(kind.name, level)
            found.append(row(kind.name, sort, level, number, check, time.perf_counter() - began))
        if statistical and not defects and (unchanged(program), str(STATISTICAL)) not in known:
            began = time.perf_counter()
            check = prover.unchanged()
            found.append(row(unchanged(program), sort, STATISTICAL, number, check, time.perf_counter() - began))
    return found


def unchanged(program: str) -> str:
    return f"{program} under other seeds"


def row(name: str, sort: str, level: Contract, number: int, check: Any, seconds: float) -> dict[str, Any]:
    assert "broke off" not in check.sentence, check.sentence
    verdict = "passes" if check.level else "refused"
    if check.statistical and check.statistical.equivalent is None:
        verdict = "not established"
    return {
        "name": name,
        "defect": sort != "harmless",
        "promised": sort != "unpromised",
        "level": str(level),
        "repetition": number,
        "verdict": verdict,
        "sentence": check.sentence,
        "seconds": round(seconds, 3),
    }


def wilson(count: int, of: int) -> list[float]:
    """95 % interval of a share (Wilson, 1927)."""
    if not of:
        return [0.0, 1.0]
    z, share = 1.96, count / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return [round(max(0.0, centre - half), 4), round(min(1.0, centre + half), 4)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_level = {}
    for level in map(str, (Contract.EXACT, Contract.ROUNDING, STATISTICAL)):
        mine = [each for each in rows if each["level"] == level and each.get("promised", True)]
        wrong = [each for each in mine if each["defect"]]
        right = [each for each in mine if not each["defect"]]
        missed = sum(each["verdict"] == "passes" for each in wrong)
        alarms = sum(each["verdict"] == "refused" for each in right)
        by_level[level] = {
            "defects": len({each["name"] for each in wrong}),
            "trials of defects": len(wrong),
            "missed": missed,
            "missed, 95 %": wilson(missed, len(wrong)),
            "only not established": sum(each["verdict"] == "not established" for each in wrong),
            "harmless": len({each["name"] for each in right}),
            "trials of harmless": len(right),
            "false alarms": alarms,
            "false alarms, 95 %": wilson(alarms, len(right)),
            "harmless not established": sum(each["verdict"] == "not established" for each in right),
            "median seconds": sorted(each["seconds"] for each in mine)[len(mine) // 2] if mine else None,
            "wrongly judged": dict(
                Counter(each["name"] for each in mine if (each["verdict"] == "passes") is each["defect"]).most_common()
            ),
        }
    beyond = [each for each in rows if not each.get("promised", True)]
    by_level["statistical, of what it does not promise to catch"] = {
        name: dict(Counter(each["verdict"] for each in beyond if each["name"] == name))
        for name in sorted({each["name"] for each in beyond})
    }
    return by_level


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=20, help="of each case at levels exact and rounding")
    parser.add_argument("--statistical", type=int, default=20, help="... and at level statistical")
    parser.add_argument("--unpromised", type=int, default=0, help="... of defects that it does not promise to catch")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--go-on", action="store_true", help="keep what the file has, and try what it has not")
    options = parser.parse_args()
    counts = {False: options.repetitions, True: options.statistical}
    rows = [each for each in kept() if options.go_on or not counted(each, counts, options.unpromised)]
    known = {
        number: frozenset((each["name"], each["level"]) for each in rows if each["repetition"] == number)
        for number in range(1, max(*counts.values(), options.unpromised) + 1)
    }
    jobs: list[Job] = [
        (number, program, statistical, sort, known[number])
        for statistical in (False, True)
        for sort in ("defects", "harmless", "unpromised")[: 3 if statistical else 2]
        for number in range(1, (options.unpromised if sort == "unpromised" else counts[statistical]) + 1)
        for program in ("images", "rows")
    ]
    began = time.perf_counter()
    with get_context("spawn").Pool(options.processes, maxtasksperchild=4) as pool:
        for done, found in enumerate(pool.imap_unordered(repetition, jobs), start=1):
            rows += found
            write(rows, time.perf_counter() - began)
            print(f"{done} of {len(jobs)}: {time.perf_counter() - began:.0f} s", flush=True)
    print(json.dumps(summary(rows), indent=2))


def counted(row: dict[str, Any], counts: dict[bool, int], unpromised: int) -> int:
    """How often its sort is tried in this run."""
    return counts[row["level"] == str(STATISTICAL)] if row.get("promised", True) else unpromised


def kept() -> list[dict[str, Any]]:
    file = RESULTS / "zoo.json"
    found: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return found


def write(rows: list[dict[str, Any]], seconds: float) -> None:
    """After every job: a benchmark that is stopped loses nothing."""
    result = {
        "summary": summary(rows),
        "wall_seconds": round(seconds),
        "machine": machine(),
        "versions": versions(),
        "rows": sorted(rows, key=lambda each: (each["level"], not each["defect"], each["name"], each["repetition"])),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "zoo.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
