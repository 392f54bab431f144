"""Effects of what only whole processes can show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from overdrive.evidence.screening import (
    Design,
    Observation,
    ProcessMean,
    error_of,
    estimate_of_processes,
    mean_of,
    on_off,
)
from tests.evidence.screening.simulated import Program, names

COSTS = {"allocator": -0.3, "pages": -0.1, "affinity": 0.2, "waiting": 0.0, "c4": 0.0, "c5": 0.0, "c6": 0.0}


def runs(pairs: int, seed: int, process: float = 0.05) -> tuple[list[ProcessMean], list[object]]:
    design = Design([*map(on_off, COSTS)], shortest=4)
    program = Program(COSTS, noise=process, process=0.0, seed=seed)
    blocks = program.screened(design, names(design), pairs, 1)
    return [ProcessMean(each.pair, each.row, each.log_seconds, 0.0, each.at) for each in blocks], list(design.factors)


@pytest.mark.parametrize("pairs", [8, 16])
def test_intervals_cover_the_truth(pairs: int) -> None:
    hits, errors = [], []
    for seed in range(60):
        found, factors = runs(pairs, seed)
        effects = estimate_of_processes(found, factors, 0.05)  # type: ignore[arg-type]
        for label, cost in COSTS.items():
            interval = effects.speedup(label)
            hits.append(interval.low <= math.exp(-cost) <= interval.high)
            errors.append(math.log(interval.estimate) + cost)
    assert np.mean(hits) >= 0.92
    assert np.std(errors) < 1.25 * 0.05 * math.sqrt(2 / pairs)


def test_two_processes_leave_everything_open() -> None:
    found, factors = runs(1, 0)
    interval = estimate_of_processes(found, factors).speedup("allocator")  # type: ignore[arg-type]
    assert interval.low < 0.8 and interval.high > 1.25


def test_the_mean_of_a_process_passes_over_what_was_disturbed() -> None:
    blocks = [Observation(0, at // 2, (at % 2,), 1.0, float(at)) for at in range(40)]
    blocks += [Observation(0, 20 + at // 2, (at % 2,), 5.0, 40.0 + at, dropped=True) for at in range(40)]
    blocks += [Observation(0, 40, (0,), 9.0, 80.0), Observation(0, 40, (1,), 9.0, 81.0)]
    assert mean_of(blocks) == (pytest.approx(1.0), pytest.approx(0.0))
    with pytest.raises(ValueError, match="no mean"):
        mean_of(blocks[:1])


def test_the_mean_of_a_process_of_uneven_steps_is_known_badly() -> None:
    """An episode of reinforcement learning may take ten times as long as the one before."""
    covered, errors = [], []
    for seed in range(200):
        chance = np.random.default_rng(seed)
        lengths = chance.normal(0.0, 0.8, 12)
        blocks = [Observation(0, at // 2, (at % 2,), float(lengths[at // 2]), float(at)) for at in range(24)]
        mean, error = mean_of(blocks)
        covered.append(abs(mean) < 2.2 * error)
        errors.append(error)
    assert np.mean(covered) > 0.9 and 0.15 < np.mean(errors) < 0.35
    assert math.isnan(mean_of(blocks[:2])[1])


def test_what_processes_of_uneven_steps_show_is_told_no_better_than_their_means_are_known() -> None:
    found, factors = runs(16, 0, process=0.01)
    uneven = [replace(run, error=0.5) for run in found]
    narrow, wide = (estimate_of_processes(each, factors, 0.03).speedup("allocator") for each in (found, uneven))  # type: ignore[arg-type]
    assert math.log(wide.high / wide.low) > 5 * math.log(narrow.high / narrow.low)
    assert error_of([replace(uneven[0], error=math.nan), *uneven[1:]]) == pytest.approx(0.5)
    assert error_of([replace(run, error=math.nan) for run in found]) == 0.0
