"""Whole runs of several arms in turn, in random order, round by round; ratios with intervals."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overdrive.core.interval import Interval
from overdrive.evidence.speed import Pair, speedup

ROOT = Path(__file__).resolve().parent.parent
OVERDRIVE = (sys.executable, "-m", "overdrive")


@dataclass(frozen=True)
class Arm:
    """One way to run the program. `measure` takes its output and wall time, and gives the seconds that count."""

    name: str
    command: tuple[str, ...]
    measure: Callable[[str, float], float] = lambda output, wall: wall


def run_once(arm: Arm, folder: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(arm.command, cwd=folder, capture_output=True, text=True, env=dict(os.environ))
    wall = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{arm.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return arm.measure(done.stdout, wall)


def alternate(arms: Sequence[Arm], rounds: int, folder: Path, seed: int = 0) -> dict[str, list[float]]:
    """Seconds of every arm in every round."""
    rng = random.Random(seed)
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for turn in range(rounds):
        for arm in rng.sample(list(arms), len(arms)):
            seconds[arm.name].append(run_once(arm, folder))
            print(f"  round {turn + 1}/{rounds}  {arm.name:28} {seconds[arm.name][-1]:8.2f} s", flush=True)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], plain: str, other: str) -> Interval:
    """How many times as fast `other` is as `plain`: paired by round, each round a process pair of its own."""
    pairs = [
        Pair(turn, 1, one, two, True)
        for turn, (one, two) in enumerate(zip(seconds[plain], seconds[other], strict=True))
    ]
    return speedup(pairs)
