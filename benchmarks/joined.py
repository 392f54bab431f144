"""Where three pairs of processes say too little: what is published with the search's evidence, and what of it is true.

python benchmarks/joined.py [--tunes 10000]   writes benchmarks/results/joined.json; a minute

Simulated with the program's own functions. A gain is screened within processes and has one duel; where the two
together say FASTER it is adopted, and three fresh pairs of processes confirm it. Where these are INCONCLUSIVE they
count together with what the search measured, as in tuner/finalise.py.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
from typing import Any

import numpy as np
from alternate import ROOT

from overdrive.core.interval import Interval
from overdrive.evidence.confirmation import FEWEST, MOST, Spread, of_any_process, told
from overdrive.evidence.speed import Pair, Verdict, combined, factor, speedup, verdict

PROCESS_SDS = (0.01, 0.02, 0.05, 0.10, 0.20)
GAINS = (1.0, 1.03, 1.05, 1.1, 1.25, 1.5)
BLOCKS_SD = 0.01  # of the mean of one pair of processes' blocks
SCREENED_SD = 0.02  # of what a screening says, beside half of what processes differ by
FREEDOM = 6  # of what a tune knows of the spread between processes
USUAL = Spread()


def known(variance: float, freedom: int) -> Spread:
    """As `spread_of` has it: shrunk towards the usual where little was seen."""
    if variance > USUAL.variance:
        return Spread(variance, freedom + 1)
    pooled = (variance * freedom + USUAL.variance * USUAL.freedom) / (freedom + USUAL.freedom)
    return Spread(pooled, freedom + USUAL.freedom)


def searched(rng: np.random.Generator, gain: float, process_sd: float, spread: Spread) -> Interval:
    """By the screening and one duel."""
    of_pair = math.hypot(math.sqrt(2) * process_sd, BLOCKS_SD)
    duel = factor(rng.normal(math.log(gain), of_pair), 1.96 * BLOCKS_SD)
    error = math.hypot(SCREENED_SD, process_sd / 2)
    return combined([factor(rng.normal(math.log(gain), error), 1.96 * error), of_any_process(duel, spread, 1)])


def published(rng: np.random.Generator, gain: float, process_sd: float) -> tuple[str, Interval | None]:
    """How a plan came out: "lost", "confirmed", "joined" or "not established", and what is told of it."""
    seen = 2 * process_sd**2 * rng.chisquare(FREEDOM) / FREEDOM
    before = searched(rng, gain, process_sd, known(seen, FREEDOM))
    if verdict(before) is not Verdict.FASTER:
        return "lost", None
    means = rng.normal(math.log(gain), math.hypot(math.sqrt(2) * process_sd, BLOCKS_SD), FEWEST)
    fresh = speedup([Pair(index, 1, math.exp(mean), 1.0, True) for index, mean in enumerate(means)])
    if verdict(fresh) is Verdict.FASTER:
        return "confirmed", told(fresh, FEWEST)
    if verdict(fresh) is not Verdict.INCONCLUSIVE:
        return "not established", None
    freedom = FREEDOM + FEWEST - 1
    spread = known((seen * FREEDOM + means.var(ddof=1) * (FEWEST - 1)) / freedom, freedom)
    half = 1.96 * BLOCKS_SD / math.sqrt(FEWEST)
    fresh = of_any_process(factor(float(means.mean()), half), spread, FEWEST)
    together = fresh if verdict(fresh) is Verdict.FASTER else combined([fresh, before])
    against = fresh.high < before.low
    return ("joined", told(together, MOST)) if verdict(together) is Verdict.FASTER and not against else ("lost", None)


def cell(rng: np.random.Generator, process_sd: float, gain: float, count: int) -> dict[str, Any]:
    told_of: dict[str, list[bool]] = {"confirmed": [], "joined": []}
    for _ in range(count):
        how, interval = published(rng, gain, process_sd)
        if interval is not None:
            told_of[how].append(interval.low <= gain <= interval.high)
    covered = {f"{how}, covered": round(sum(hits) / len(hits), 3) if hits else None for how, hits in told_of.items()}
    shares = {how: len(hits) / count for how, hits in told_of.items()}
    return {"process sd": process_sd, "gain": gain, **shares, **covered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=10000)
    count = parser.parse_args().tunes
    rng = np.random.default_rng(1)
    cells = []
    for process_sd, gain in itertools.product(PROCESS_SDS, GAINS):
        cells.append(cell(rng, process_sd, gain, count))
        print(cells[-1], flush=True)
    result = {"date": datetime.date.today().isoformat(), "tunes a cell": count, "cells": cells}
    (ROOT / "benchmarks" / "results" / "joined.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
