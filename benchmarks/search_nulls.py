"""What simulated searches claim: of parameters that do nothing, and of one that does.

python benchmarks/search_nulls.py [--searches 100]   writes benchmarks/results/search_nulls.json after each kind

Nothing is trained: a run's metric comes of its values, its seed and chance (`tests/search/simulated.py`). Proposals,
early ends, the comparison and its verdict are the program's own. A search that claims a gain of nothing is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from alternate import ROOT

sys.path.insert(0, str(ROOT))

from overdrive.core.search_result import Tried
from overdrive.core.settings import Value
from overdrive.machine.inventory import versions
from overdrive.search.goal import Goal
from overdrive.search.runs import OnProgress
from tests.search.simulated import Quality, Simulated, searched

RESULTS = ROOT / "benchmarks" / "results" / "search_nulls.json"


def nothing(values: Mapping[str, Value], chance: random.Random) -> float:
    return 90 + chance.gauss(0, 1)


def long_tails(values: Mapping[str, Value], chance: random.Random) -> float:
    """Now and then a run is far off, as of one that diverged late."""
    return 90 + chance.gauss(0, 1) - (5 if chance.random() < 0.1 else 0)


def learning_rate(values: Mapping[str, Value], chance: random.Random) -> float:
    """Best at 0.1, where it is three standard deviations better than with the default 0.01."""
    return 93 - 3 * (math.log10(float(values["lr"])) + 1) ** 2 + chance.gauss(0, 1)


class Costing(Simulated):
    """What a run costs is chance, too, and the cheapest one that is as good is looked for."""

    def run(self, values: Mapping[str, Value], seed: int, seconds: float, watch: OnProgress | None) -> Tried:
        chance = random.Random(repr((self.chance, seed, sorted(values.items()), "cost")))
        return replace(super().run(values, seed, seconds, watch), cost=math.exp(chance.gauss(0, 0.05)))


# By name: the truth, whether metrics are seen on the way (and runs ended early), and the budget in default runs.
KINDS: dict[str, tuple[Quality, bool, float]] = {
    "nothing": (nothing, False, 40.0),
    "nothing, ended early": (nothing, True, 40.0),
    "nothing, the least budget": (nothing, True, 11.0),
    "nothing, against a cost": (nothing, False, 40.0),
    "nothing, long tails": (long_tails, True, 40.0),
    "a learning rate": (learning_rate, True, 40.0),
}


def claims(quality: Quality, curve: bool, budget: float, searches: int, costs: bool) -> dict[str, Any]:
    """How often a gain is claimed, and what gains look like in the search and on fresh seeds."""
    claimed, apparent, fresh, pairs = 0, [], [], []
    for number in range(searches):
        with tempfile.TemporaryDirectory() as folder:
            program = (Costing if costs else Simulated)(quality, number, curve)
            goal = Goal(True, against="time" if costs else "")
            result = searched(program, Path(folder) / "journal", budget, number, goal)
        claimed += result.verdict in ("better", "cheaper")
        if result.comparison:
            apparent.append(result.comparison.apparent)
            fresh.append(result.comparison.gain.estimate)
            pairs.append(len(result.comparison.seeds))
    return {
        "searches": searches,
        "claimed": claimed,
        "compared": len(fresh),
        "pairs": statistics.median(pairs or [0]),
        "apparent_gain": round(statistics.fmean(apparent or [0.0]), 3),
        "gain_on_fresh_seeds": round(statistics.fmean(fresh or [0.0]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=100)
    options = parser.parse_args()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "versions": versions(), "claims": {}}
    for name, (quality, curve, budget) in KINDS.items():
        found["claims"][name] = claims(quality, curve, budget, options.searches, "cost" in name)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name:28} {found['claims'][name]}", flush=True)


if __name__ == "__main__":
    main()
