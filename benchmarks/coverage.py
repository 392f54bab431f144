"""How often the intervals of confirmations cover the truth, simulated with the program's own functions.

python benchmarks/coverage.py [--confirmations 10000]   writes benchmarks/results/coverage.json; two minutes
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
from overdrive.evidence.confirmation import FEWEST, USUAL, Spread, pairs_needed, spread_of, told
from overdrive.evidence.speed import Pair, Verdict, speedup, verdict

PROCESS_SDS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.20)
GAINS = (1.05, 1.3, 2.0, 4.0)
BLOCK_SD = 0.05  # of one pair of blocks
BLOCKS = 12
CONTROL_BLOCKS = 40


def known_before(rng: np.random.Generator, process_sd: float) -> Spread:
    """From what a tune has seen before its confirmation: its control, and four duels of two pairs of processes."""

    def pairs(processes: int, blocks: int) -> list[Pair]:
        return [
            Pair(process, 1, math.exp(lasting + BLOCK_SD * noise), 1.0, True)
            for process in range(processes)
            for lasting in [process_sd * math.sqrt(2) * rng.standard_normal()]
            for noise in rng.standard_normal(blocks)
        ]

    return spread_of(pairs(1, CONTROL_BLOCKS), [pairs(2, 20) for _ in range(4)])


def confirmation(rng: np.random.Generator, gain: float, process_sd: float, processes: int) -> Interval:
    """The mean of each process's blocks is drawn at once: within processes nothing is left to look at."""
    sd = math.sqrt(2 * process_sd**2 + BLOCK_SD**2 / BLOCKS * 1.2)  # a trimmed mean of normal noise
    means = math.log(gain) + sd * rng.standard_normal(processes)
    return speedup([Pair(index, 1, math.exp(mean), 1.0, True) for index, mean in enumerate(means)])


def cell(rng: np.random.Generator, gain: float, process_sd: float, count: int, in_time: bool) -> dict[str, Any]:
    """`in_time`: there is time for as many pairs as the noise asks for, and not only for the fewest."""
    spreads = [known_before(rng, process_sd) for _ in range(40)]
    covered, published, pulled, raw, numbers = 0, [], 0, [], []
    for index in range(count):
        estimate = gain * math.exp(0.05 * rng.standard_normal())  # what the search took the gain for
        needed = pairs_needed(spreads[index % len(spreads)], estimate, BLOCKS)
        number = max(USUAL, needed) if in_time else FEWEST
        numbers.append(number)
        interval = confirmation(rng, gain, process_sd, number)
        hit = interval.low <= gain <= interval.high
        covered += hit
        if verdict(interval) is Verdict.FASTER:
            shown = told(interval, number)
            published.append(shown.low <= gain <= shown.high)
            raw.append(hit)
            pulled += shown != interval
    return {
        "process sd": process_sd,
        "gain": gain,
        "pairs of processes": round(float(np.mean(numbers)), 1),
        "covered, all": covered / count,
        "published": len(published) / count,
        "covered, published": sum(published) / max(1, len(published)),
        "covered, had it not been corrected": sum(raw) / max(1, len(raw)),
        "told from 1.01": pulled / max(1, len(published)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--confirmations", type=int, default=10000)
    count = parser.parse_args().confirmations
    rng = np.random.default_rng(1)
    cells = []
    for in_time, process_sd, gain in itertools.product((True, False), PROCESS_SDS, GAINS):
        cells.append(cell(rng, gain, process_sd, count, in_time))
        print({name: round(value, 3) for name, value in cells[-1].items()}, flush=True)
    result = {"date": datetime.date.today().isoformat(), "confirmations a cell": count, "cells": cells}
    (ROOT / "benchmarks" / "results" / "coverage.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
