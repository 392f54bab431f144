"""Simulated screenings with a known truth: is the best plan found, nothing useless adopted, and do intervals cover?

python benchmarks/screening.py [--quick] [--only PART]   writes benchmarks/results/screening.json

Nothing is run: times are numbers drawn as blocks of live trials behave. As in statistics-review.md, 8.4: noise of a
block with heavy tails (t, 3 degrees of freedom), a drift as large that forgets itself within 5 s, processes that
differ for all their life, effects that differ between processes by a fifth of that; 2.3 s to start a process, 0.25 s a
pair of blocks. `--quick` takes two minutes, all of it half an hour; `--only` a part takes under four minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from overdrive.evidence import student
from overdrive.evidence.screening import (
    Alternative,
    Design,
    Observation,
    ProcessMean,
    carry_over,
    choose,
    estimate,
    estimate_of_processes,
    next_look,
    on_off,
    pairs_of_process,
    race,
)
from overdrive.evidence.screening.matrices import paired

RESULTS = Path(__file__).resolve().parent / "results" / "screening.json"
START, PAIR = 2.3, 0.25  # seconds
FIRST_SHARE = 48  # pairs of the first process, until a look says more
DRIFT = 5.0  # seconds after which a drift has forgotten two thirds of itself
PLACEBOS = 3
SEARCHES = 40  # in a cell
Cells = Iterator[tuple[str, dict[str, Any]]]  # by name
GAINS = (1.05, 1.15, 1.4, 2.0, 0.9, 0.8, 0.5, *(1.0,) * 13)  # 8.4: four real, three harmful, 13 useless


@dataclass(frozen=True)
class World:
    """What is true."""

    gains: Sequence[float] = GAINS  # speedups of candidates c0, c1, ... by themselves
    together: Mapping[tuple[int, int], float] = field(default_factory=dict)  # what two do beside that, as a factor
    block: float = 0.1
    process: float = 0.05
    varies: float = 0.2  # effects between processes, in units of `process`
    late: float = 0.0  # share of a change that comes one block late
    bursts: float = 0.0  # share of the time in which a neighbour makes all 1.5 times as slow, for half a second each

    def gain_of(self, plan: Collection[int]) -> float:
        """Logarithm of its speedup."""
        pairs = [gain for pair, gain in self.together.items() if set(pair) <= set(plan)]
        return sum(math.log(self.gains[each]) for each in plan) + sum(map(math.log, pairs))


class Process:
    """Draws the log times of one process."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._world, self._rng = world, rng
        self._base = world.process * rng.standard_normal()
        self._effects = -np.log(world.gains) + world.varies * world.process * rng.standard_normal(len(world.gains))
        self._drift = world.block * rng.standard_normal()
        self._last: float | None = None
        self._burst = 0.0  # seconds that it still lasts

    def log_seconds(self, row: Sequence[int]) -> float:
        world, rng, seconds = self._world, self._rng, PAIR / 2
        forgets = math.exp(-seconds / DRIFT)
        self._drift = forgets * self._drift + math.sqrt(1 - forgets**2) * world.block * rng.standard_normal()
        on = np.array(row[: len(world.gains)])
        change = float(self._effects @ on)
        for (one, other), gain in world.together.items():
            change -= math.log(gain) * on[one] * on[other]
        before = change if self._last is None else self._last
        self._last = change
        noise = world.block * rng.standard_t(3) / math.sqrt(3)
        return self._base + self._drift + change + world.late * (before - change) + noise + self._disturbed(seconds)

    def _disturbed(self, seconds: float) -> float:
        if self._world.bursts and self._burst <= 0 and self._rng.random() < self._world.bursts * seconds / 0.5:
            self._burst = 0.5
        self._burst -= seconds
        return math.log(1.5) if self._burst > -seconds and self._world.bursts and self._burst + seconds > 0 else 0.0


def screen(world: World, seconds: float, seed: int) -> tuple[set[int], float, int]:
    """A whole screening: the plan that it chooses, when it stopped, and how many processes it took."""
    rng = np.random.default_rng(seed)
    names = [f"c{index}" for index in range(len(world.gains))]
    factors = [*map(on_off, names), *(on_off(f"placebo{index}", placebo=True) for index in range(PLACEBOS))]
    design, candidates = Design(factors), [Alternative(name) for name in names]
    active = {factor.name for factor in factors}
    blocks: list[Observation] = []
    clock, pairs, look, number = START, 0, next_look(0), 0
    process, own, share = Process(world, rng), 0, FIRST_SHARE
    while clock + PAIR <= seconds:
        if own >= share and clock + START + PAIR < seconds:
            number, process, own, share = number + 1, Process(world, rng), 0, max(share, 1)
            clock += START
        for row in design.next_pair(active, rng):
            blocks.append(Observation(number, pairs, row, process.log_seconds(row), clock))
            clock += PAIR / 2
        pairs, own = pairs + 1, own + 1
        if pairs == look:
            effects = estimate(blocks, factors, noise=world.block)
            verdict = race(effects, active, candidates, factors)
            active -= verdict.drop
            look = next_look(pairs)
            share = pairs_of_process(effects, PAIR, START, seconds - clock)
            if verdict.stop:
                break
    else:
        verdict = race(estimate(blocks, factors, noise=world.block), active, candidates, factors)
    return {int(label[1:]) for label in verdict.plan}, clock, number + 1


def best_plan(world: World) -> tuple[int, ...]:
    """Of all subsets of what interacts, with all that gains by itself."""
    mixed = sorted({each for pair in world.together for each in pair})
    alone = [at for at, gain in enumerate(world.gains) if gain > 1 and at not in mixed]
    choices = product((False, True), repeat=len(mixed))
    subsets = ([each for each, on in zip(mixed, choice, strict=True) if on] for choice in choices)
    return max(((*alone, *subset) for subset in subsets), key=lambda plan: (round(world.gain_of(plan), 9), -len(plan)))


def searched(world: World, seconds: float, count: int) -> dict[str, Any]:
    """A cell of the table: shares of so many screenings, and means."""
    best = best_plan(world)
    found = [screen(world, seconds, seed) for seed in range(count)]
    found_best = [world.gain_of(best) - world.gain_of(plan) < 1e-9 for plan, *_ in found]
    useless = [sum(world.gain_of(plan - {each}) >= world.gain_of(plan) for each in plan) for plan, *_ in found]
    missed = [world.gain_of(best) - world.gain_of(plan) for plan, *_ in found]
    shares = [world.gain_of(plan) / world.gain_of(best) if best else 1.0 for plan, *_ in found]
    cell: dict[str, Any] = {
        "best plan, nothing useless": _mean(
            right and not idle for right, idle in zip(found_best, useless, strict=True)
        ),
        "useless": _mean(useless),
        "of the best log gain": _mean(shares),
        "within 2 % of it": _mean(miss < 0.02 for miss in missed),
        "seconds": _mean(clock for _, clock, _ in found),
        "processes": _mean(processes for *_, processes in found),
        "searches": count,
    }
    for index, gain in enumerate(world.gains):
        if gain in (1.05, 1.15) and index in best and not world.together:
            cell[f"{gain} found"] = _mean(index in plan for plan, *_ in found)
    return cell


def _mean(values: Any) -> float:
    return round(float(np.mean(list(values))), 3)


def table(seconds: float, block: float, quick: bool) -> Cells:
    """The cells of 8.4, by standard deviations of a block and of a process."""
    for process in (0.02, 0.05, 0.1, 0.2):
        name = f"block {block:.0%}, process {process:.0%}"
        yield name, searched(World(block=block, process=process), seconds, 6 if quick else SEARCHES)


def special(interacting: bool, quick: bool) -> Cells:
    """The special cases of 8.4, of which screening had 180 s: those with pairs that interact, or the others."""
    rest = (1.05, 1.15, 1.4, 0.9, 0.8, 0.5, *(1.0,) * 12)
    worlds = {
        "antagonists (1.3, 1.3, both 1.0)": World((1.3, 1.3, *rest), {(0, 1): 1 / 1.69}),
        "only together (1.0, 1.1, both 1.8)": World((1.0, 1.1, *rest), {(0, 1): 1.8 / 1.1}),
        "redundant (1.5, 1.5, both 1.5)": World((1.5, 1.5, *rest), {(0, 1): 1 / 1.5}),
        "8 of 20 help": World((1.05, 1.07, 1.1, 1.15, 1.2, 1.3, 1.5, 1.8, *(1.0,) * 9, 0.9, 0.8, 0.5)),
        "nothing helps": World((1.0,) * 20),
        "effects vary by half of the process": World(varies=0.5),
        "a neighbour's bursts in a fifth of the time": World(bursts=0.2),
    }
    for name, world in worlds.items():
        if bool(world.together) is not interacting:
            continue
        yield name, searched(world, 180.0, 6 if quick else SEARCHES)


def blocks_of(world: World, pairs: int, processes: int, seed: int) -> tuple[list[Observation], Design]:
    """So many pairs of all candidates and the placebos."""
    rng = np.random.default_rng(seed)
    factors = [on_off(f"c{index}") for index in range(len(world.gains))]
    factors += [on_off(f"placebo{index}", placebo=True) for index in range(PLACEBOS)]
    design, blocks = Design(factors), []
    for number in range(processes):
        process = Process(world, rng)
        for pair in range(number * pairs // processes, (number + 1) * pairs // processes):
            for half, row in enumerate(design.next_pair([factor.name for factor in factors], rng)):
                blocks.append(Observation(number, pair, row, process.log_seconds(row), 2.0 * pair + half))
    return blocks, design


def coverage(quick: bool) -> Cells:
    """Of the 95 % intervals, over all candidates; their half width, and the error that they speak of."""
    cases = {
        "32 pairs, block 10 %, process 5 %": (World(), 32, 4),
        "64 pairs, block 10 %, process 5 %": (World(), 64, 4),
        "200 pairs, block 10 %, process 5 %": (World(), 200, 4),
        "200 pairs, block 3 %, process 10 %": (World(block=0.03, process=0.1), 200, 4),
        "200 pairs, block 30 %, process 5 %": (World(block=0.3), 200, 4),
        "400 pairs, block 10 %, process 20 %": (World(process=0.2), 400, 4),
        "400 pairs, block 10 %, bursts": (World(bursts=0.2), 400, 4),
        "12 pairs, one process, block 5 %": (World(block=0.05), 12, 1),
    }
    for name, (world, pairs, processes) in cases.items():
        hits, halves, errors = [], [], []
        for seed in range(8 if quick else 100):
            blocks, design = blocks_of(world, pairs, processes, seed)
            effects = estimate(blocks, design.factors, noise=world.block)
            for index, gain in enumerate(world.gains):
                interval = effects.speedup(f"c{index}")
                hits.append(interval.low <= gain <= interval.high)
                halves.append(math.log(interval.high / interval.low) / 2)
                errors.append(math.log(interval.estimate / gain))
        rms = round(float(np.sqrt(np.mean(np.square(errors)))), 4)
        yield name, {"covered": _mean(hits), "half width": round(float(np.mean(halves)), 4), "error": rms}


def _least_squares(design: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Effects with sandwich errors (HC3)."""
    inverse = np.linalg.inv(design.T @ design)
    effects = inverse @ design.T @ values
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    residuals = (values - design @ effects) / (1 - leverage)
    return effects, np.sqrt(np.diag(inverse @ (design.T * residuals**2) @ design @ inverse))


def _huber(design: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Huber's with sandwich errors."""
    effects, _ = _least_squares(design, values)
    for _ in range(30):
        residuals = values - design @ effects
        scale = 1.4826 * np.median(np.abs(residuals)) * math.sqrt(len(values) / (len(values) - design.shape[1]))
        pseudo = design @ effects + np.clip(residuals, -1.345 * scale, 1.345 * scale)
        effects = effects + np.linalg.solve(design.T @ design, design.T @ (pseudo - design @ effects))
    inside = np.abs(values - design @ effects) < 1.345 * scale
    kept = float(np.mean(inside))
    return effects, _least_squares(design, design @ effects + (pseudo - design @ effects) / kept)[1]


def _median(design: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The median of the pairs, signed by each candidate: other candidates are noise."""
    signed = design * values[:, None]
    spread = 1.4826 * np.median(np.abs(signed - np.median(signed, axis=0)), axis=0)
    return np.median(signed, axis=0), 1.2533 * spread / math.sqrt(len(values))


def estimators(quick: bool) -> Cells:
    """Root mean square errors of main effects, and coverage, on heavy tails with and without a neighbour's bursts."""
    ways: dict[str, Callable[..., Any]] = {"least squares": _least_squares, "Huber": _huber, "median": _median}
    for bursts, pairs in product((0.0, 0.2, 0.4), (40, 64, 200)):
        found: dict[str, list[Any]] = {name: [[], []] for name in [*ways, "model"]}
        world = World(process=0.0, bursts=bursts)
        for seed in range(10 if quick else 100):
            blocks, design = blocks_of(world, pairs, 1, seed)
            rows = paired(blocks, design.factors)
            truth = np.concatenate([-np.log(world.gains), np.zeros(PLACEBOS)])
            quantile = student.quantile(0.95, pairs - len(truth))
            answers = {name: way(rows.first - rows.second, rows.differences) for name, way in ways.items()}
            effects = estimate(blocks, design.factors, noise=world.block)
            for name, (mean, error) in answers.items():
                found[name][0] += list(mean - truth)
                found[name][1] += list(np.abs(mean - truth) < quantile * error)
            for label, true in zip(effects.labels, truth, strict=True):
                interval = effects.speedup(label)
                found["model"][0].append(math.log(interval.estimate) + true)
                found["model"][1].append(math.log(interval.low) <= -true <= math.log(interval.high))
        name = f"{pairs} pairs, bursts in {bursts:.0%}"
        yield (
            name,
            {
                way: {"error": round(float(np.sqrt(np.mean(np.square(errors)))), 4), "covered": _mean(hits)}
                for way, (errors, hits) in found.items()
            },
        )


def carried(quick: bool) -> Cells:
    """The share that comes late, as it is seen, and how often a longer lead is asked for."""
    for late in (0.0, 0.05, 0.1, 0.2):
        found = [
            carry_over(blocks, design.factors)
            for blocks, design in (blocks_of(World(late=late), 256, 4, seed) for seed in range(10 if quick else 60))
        ]
        there = [each for each in found if each]
        yield (
            f"{late:.0%} late",
            {
                "estimate": _mean(each.share.estimate for each in there),
                "covered": _mean(each.share.low <= late <= each.share.high for each in there),
                "longer lead": _mean(each.longer_lead for each in there),
            },
        )


def few(quick: bool) -> Cells:
    """Slow programs: 10 to 30 blocks in one process are all there is, over 20 candidates."""
    for block, pairs in product((0.03, 0.1), (5, 8, 12, 15)):
        world = World(block=block)
        plans = []
        for seed in range(10 if quick else 60):
            blocks, design = blocks_of(world, pairs, 1, seed)
            labels = [f"c{index}" for index in range(len(world.gains))]
            effects = estimate(blocks, design.factors, noise=world.block)
            verdict = race(effects, labels, map(Alternative, labels), design.factors)
            plans.append({int(label[1:]) for label in verdict.plan})
        name = f"{pairs} pairs, block {block:.0%}"
        cell = {f"{gain} taken": _mean(index in plan for plan in plans) for index, gain in enumerate(GAINS[:7])}
        cell["useless"] = _mean(sum(world.gains[each] == 1 for each in plan) for plan in plans)
        cell["of the best log gain"] = _mean(world.gain_of(plan) / world.gain_of(best_plan(world)) for plan in plans)
        yield name, cell


def of_processes(quick: bool) -> Cells:
    """Seven candidates that whole processes differ in, and pairs of processes: as in 8.3."""
    gains = (1.35, 1.1, 0.9, 1.0, 1.0, 1.0, 1.0)
    factors = [on_off(f"c{index}") for index in range(len(gains))]
    for spread, pairs in product((0.05, 0.1), (8, 16)):
        plans, hits = [], []
        for seed in range(20 if quick else 400):
            rng = np.random.default_rng(seed)
            design, runs = Design(factors, shortest=4), []
            for pair in range(pairs):
                for half, row in enumerate(design.next_pair([factor.name for factor in factors], rng)):
                    change = -float(np.log(gains) @ np.array(row))
                    seen = change + spread * rng.standard_normal()
                    runs.append(ProcessMean(pair, row, seen, 0.0, 2.0 * pair + half))
            effects = estimate_of_processes(runs, factors, spread)
            plans.append(choose(effects, (Alternative(factor.name) for factor in factors), factors))
            intervals = [effects.speedup(factor.name) for factor in factors]
            hits += [each.low <= gain <= each.high for each, gain in zip(intervals, gains, strict=True)]
        name = f"{pairs} pairs, process {spread:.0%}"
        cell = {f"{gains[at]} taken": _mean(f"c{at}" in plan for plan in plans) for at in range(3)}
        cell["useless, each"] = _mean(len({*plan} - {"c0", "c1", "c2"}) / 4 for plan in plans)
        cell["covered"] = _mean(hits)
        yield name, cell


PARTS: dict[str, Callable[[bool], Cells]] = {
    "estimators": estimators,
    "coverage": coverage,
    "carry-over": carried,
    "few": few,
    "of processes": of_processes,
    "interacting": partial(special, True),
    "special": partial(special, False),
}
PARTS |= {
    f"{seconds} s, block {block} %": partial(table, float(seconds), block / 100)
    for seconds, block in product((90, 180, 300), (3, 10, 30))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the searches, at 180 s only")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.only or (each for each in PARTS if not options.quick or each[:2] not in ("90", "30")):
        print(name, flush=True)
        cells: dict[str, Any] = {}
        result[name] = {"date": datetime.date.today().isoformat(), "quick": options.quick, "cells": cells}
        for cell, figures in PARTS[name](options.quick):
            print(f"  {cell:44} {figures}", flush=True)
            cells[cell] = figures  # written after each: one that is stopped loses nothing
            RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
