"""Effects of what only whole processes can show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from overdrive.evidence.screening import Design, Observation, ProcessMean, estimate_of_processes, mean_of, on_off
from tests.evidence.screening.simulated import Program, names

COSTS = {"allocator": -0.3, "pages": -0.1, "affinity": 0.2, "waiting": 0.0, "c4": 0.0, "c5": 0.0, "c6": 0.0}


def runs(pairs: int, seed: int, process: float = 0.05) -> tuple[list[ProcessMean], list[object]]:
    design = Design([*map(on_off, COSTS)], shortest=4)
    program = Program(COSTS, noise=process, process=0.0, seed=seed)
    blocks = program.screened(design, names(design), pairs, 1)
    return [ProcessMean(each.pair, each.row, each.log_seconds, each.at) for each in blocks], list(design.factors)


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
    assert mean_of(blocks) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no mean"):
        mean_of(blocks[:1])
