"""Whole tunes of simulated programs with a known truth: is anything useless adopted, and is what helps found?

python benchmarks/tunes.py [--tunes 100]   writes benchmarks/results/tunes.json; a minute for ten tunes of each kind

The tuner is the real one, from the control to the confirmation; trials are only numbers (tests/simulated.py). A step
takes 10 ms and a process 3 s to start, or 0.75 s and 8 s, as in public siamese; a tune has 5 minutes of a clock of its
own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from overdrive.core.facts import Facts  # noqa: E402
from overdrive.tuner.findings import Findings  # noqa: E402
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
# What cannot be in one plan with one that is screened, and has a duel: an engine beside `channels_last`, say. One gains
# more than that, one less.
ENGINE = {"expected_saving": 0.4, "targets": ("forward", "backward"), "usual_start": 12.0, "conflicts": ("layout",)}
RIVALS: dict[str, tuple[dict[str, Any], float]] = {
    "layout": (SWITCHED, 2.4),
    "engine": (ENGINE, 5.0),
    "poor_engine": (ENGINE | {"conflicts": ("layout", "engine")}, 1.6),
}
ALL = CANDIDATES | RIVALS
WITH_RIVALS = ("layout", "engine", "poor_engine", "little", "harmful", "of_process", "nothing1", "nothing2")
# Of programs with slow steps: fewer, as fewer apply.
OF_SLOW = ("much", "little", "harmful", "of_process", "by_duel", "nothing1", "nothing2", "no_process1", "no_process2")
NULLS = [name for name, (_, gain) in ALL.items() if gain <= 1.0]


@dataclass(frozen=True)
class Kind:
    """A kind of simulated program."""

    step: float  # seconds
    start: float  # seconds
    jitter: float  # of a block, one standard deviation of its log time
    spread: float  # of a process
    names: tuple[str, ...] = tuple(CANDIDATES)

    def seconds(self, names: Names) -> float:
        took = self.step
        for name in names:
            took /= ALL[name][1]
        return took

    @property
    def most(self) -> float:
        """How many times as fast the best plan makes it."""
        best: list[str] = []
        for name in sorted(self.names, key=lambda each: -ALL[each][1]):
            excluded = ALL[name][0].get("conflicts", ())
            if ALL[name][1] > 1 and not any(
                each in excluded or name in ALL[each][0].get("conflicts", ()) for each in best
            ):
                best.append(name)
        return math.prod(ALL[name][1] for name in best)


def tuned(chance: int, kind: Kind) -> dict[str, Any]:
    """One tune: what its plan has, and what it says of its speed."""
    chosen = {name: ALL[name][0] for name in kind.names}
    patch = pytest.MonkeyPatch()
    brought = offer.__wrapped__(patch)  # the fixture's generator
    try:
        next(brought)(**chosen)
        program = Simulated(
            seconds=kind.seconds,
            start=kind.start,
            takes_time=True,
            jitter=kind.jitter,
            spread=kind.spread,
            chance=chance,
            facts=Facts(shares={"forward": 0.5, "backward": 0.5}, step_seconds=kind.step),
        )
        program.enter(patch)
        with tempfile.TemporaryDirectory() as folder:
            found = searched(Path(folder), budget=BUDGET)
    finally:
        patch.undo()
        next(brought, None)
    plan = [each.name for each in found.chosen]
    measured = found.standing.interval if found.standing else found.confirmation and found.confirmation.interval
    true = kind.step / kind.seconds(frozenset(plan))
    return {
        "plan": plan,
        "seconds": round(found.seconds),
        "gain": math.log(true),
        "measured": sum(bool(found.screened.speedups.get(name)) or name in _duelled(found) for name in kind.names),
        "confirmed": found.confirmed,
        "covered": bool(measured and measured.low <= true <= measured.high) if plan else None,
    }


def _duelled(found: Findings) -> set[str]:
    """What had a duel of its own."""
    duels = [each for each in (*found.adopted, *found.rejected, *found.dropped) if each.duel]
    return {each.name for each in duels if each.duel and each.duel.interval}


KINDS = [
    *(Kind(0.01, 3.0, jitter, spread, tuple(NULLS)) for jitter, spread in ((0.03, 0.02), (0.1, 0.05))),
    *(Kind(0.01, 3.0, jitter, spread) for jitter, spread in ((0.03, 0.02), (0.1, 0.02), (0.1, 0.05))),
    Kind(0.75, 8.0, 0.08, 0.03, tuple(name for name in OF_SLOW if name in NULLS)),
    *(Kind(0.75, 8.0, jitter, spread, OF_SLOW) for jitter, spread in ((0.04, 0.02), (0.08, 0.03))),
    Kind(0.75, 8.0, 0.08, 0.03, tuple(name for name in OF_SLOW if name != "much")),
    Kind(3.0, 10.0, 0.06, 0.03, OF_SLOW),
    *(Kind(0.01, 3.0, jitter, spread, WITH_RIVALS) for jitter, spread in ((0.03, 0.02), (0.1, 0.05))),
    Kind(0.75, 8.0, 0.08, 0.03, WITH_RIVALS),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tunes", type=int, default=100, help="of each kind")
    parser.add_argument("--slow", action="store_true", help="those with slow steps alone, and nothing is written")
    parser.add_argument("--rivals", action="store_true", help="those with rivals alone, and nothing is written")
    arguments = parser.parse_args()
    tunes = arguments.tunes
    rows = []
    for kind in KINDS:
        if (arguments.slow and kind.step < 0.1) or (arguments.rivals and kind.names != WITH_RIVALS):
            continue
        outcomes = [tuned(chance, kind) for chance in range(tunes)]
        found = Counter(name for each in outcomes for name in each["plan"])
        covered = [each["covered"] for each in outcomes if each["covered"] is not None]
        helping = [name for name in kind.names if name not in NULLS]
        shares = sorted(each["gain"] / math.log(kind.most) for each in outcomes) if helping else [0.0]
        rows.append(
            {
                "candidates": len(kind.names) if helping else f"{len(kind.names)}, none of which helps",
                "step_seconds": kind.step,
                "block_sd": kind.jitter,
                "process_sd": kind.spread,
                "tunes": tunes,
                "with_useless": sum(any(name in NULLS for name in each["plan"]) for each in outcomes),
                "useless": {name: found[name] for name in NULLS if found[name]},
                "found": {name: found[name] for name in helping},
                "share_of_gain": [round(shares[at], 2) for at in (len(shares) // 10, len(shares) // 2)],
                "measured": round(sum(each["measured"] for each in outcomes) / tunes, 1),
                "plans": sum(bool(each["plan"]) for each in outcomes),
                "confirmed": sum(each["confirmed"] for each in outcomes if each["plan"]),
                "covered": f"{sum(covered)} of {len(covered)}",
                "longest_seconds": max(each["seconds"] for each in outcomes),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if not (arguments.slow or arguments.rivals):
        RESULTS.write_text(json.dumps({"date": datetime.date.today().isoformat(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
