"""Whole tunes of simulated programs with a known truth: is anything useless adopted, and is what helps found?

python benchmarks/tunes.py [--tunes 100]   writes benchmarks/results/tunes.json; a minute for ten tunes of each kind

The tuner is the real one, from the control to the confirmation; trials are only numbers (tests/simulated.py). A step
takes 10 ms, a process 3 s to start, a tune 5 minutes of a clock of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulated import Names, Simulated, offer, searched  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "tunes.json"
BUDGET = 300.0
SWITCHED = {"switchable": True}
OF_PROCESSES = {"environment": lambda self, settings: {"ANY": "1"}}
# What there is to be tried, by how; of each a few that do nothing.
CANDIDATES: dict[str, tuple[dict[str, Any], float]] = {
    "much": (SWITCHED, 1.3),
    "little": (SWITCHED, 1.05),
    "harmful": (SWITCHED, 0.8),
    "of_process": (OF_PROCESSES, 1.15),
    "by_duel": ({"expected_saving": 0.2}, 1.15),
    **{f"nothing{number}": (SWITCHED, 1.0) for number in range(12)},
    **{f"no_process{number}": (OF_PROCESSES, 1.0) for number in range(3)},
    **{f"no_duel{number}": ({}, 1.0) for number in range(3)},
}
NULLS = [name for name, (_, gain) in CANDIDATES.items() if gain <= 1.0]


def seconds(names: Names) -> float:
    took = 0.01
    for name in names:
        took /= CANDIDATES[name][1]
    return took


def tuned(chance: int, jitter: float, spread: float, only_nulls: bool) -> dict[str, Any]:
    """One tune: what its plan has, and what it says of its speed."""
    chosen = {name: how for name, (how, _) in CANDIDATES.items() if not only_nulls or name in NULLS}
    patch = pytest.MonkeyPatch()
    brought = offer.__wrapped__(patch)  # the fixture's generator
    try:
        next(brought)(**chosen)
        program = Simulated(seconds=seconds, start=3.0, takes_time=True, jitter=jitter, spread=spread, chance=chance)
        program.enter(patch)
        with tempfile.TemporaryDirectory() as folder:
            found = searched(Path(folder), budget=BUDGET)
    finally:
        patch.undo()
        next(brought, None)
    plan = [each.name for each in found.chosen]
    measured = found.standing.interval if found.standing else found.confirmation and found.confirmation.interval
    true = 0.01 / seconds(frozenset(plan))
    return {
        "plan": plan,
        "seconds": round(found.seconds),
        "confirmed": found.confirmed,
        "covered": bool(measured and measured.low <= true <= measured.high) if plan else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunes", type=int, default=100, help="of each kind")
    tunes = parser.parse_args().tunes
    rows = []
    for only_nulls, jitter, spread in [
        (True, 0.03, 0.02),
        (True, 0.1, 0.05),
        (False, 0.03, 0.02),
        (False, 0.1, 0.02),
        (False, 0.1, 0.05),
    ]:
        outcomes = [tuned(chance, jitter, spread, only_nulls) for chance in range(tunes)]
        found = Counter(name for each in outcomes for name in each["plan"])
        covered = [each["covered"] for each in outcomes if each["covered"] is not None]
        rows.append(
            {
                "candidates": "nothing helps" if only_nulls else "all",
                "block_sd": jitter,
                "process_sd": spread,
                "tunes": tunes,
                "with_useless": sum(any(name in NULLS for name in each["plan"]) for each in outcomes),
                "useless": {name: found[name] for name in NULLS if found[name]},
                "found": {name: found[name] for name, (_, gain) in CANDIDATES.items() if gain > 1 and not only_nulls},
                "plans": sum(bool(each["plan"]) for each in outcomes),
                "confirmed": sum(each["confirmed"] for each in outcomes if each["plan"]),
                "covered": f"{sum(covered)} of {len(covered)}",
                "longest_seconds": max(each["seconds"] for each in outcomes),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text(json.dumps({"date": datetime.date.today().isoformat(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
