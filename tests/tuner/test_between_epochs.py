"""What comes between two epochs: seen in short ones, and told of whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from overdrive.core.facts import Facts, LoaderFacts
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.core.tune_result import Figures
from overdrive.trials.pool import TrialPool
from overdrive.tuner.between_epochs import between_epochs, steps_of_epoch
from overdrive.tuner.whole_runs import run_seconds

WAITS = 0.4  # seconds, in each evaluation of the program
FACTS = Facts(loaders=(LoaderFacts(8, 0, True, 800, 0.0),), samples_per_step=8, step_seconds=0.05)
PROGRAM = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

epochs, workers = int(sys.argv[1]), int(sys.argv[2])
data = TensorDataset(torch.randn(800, 4), torch.randn(800, 1))
train = DataLoader(data, batch_size=8, shuffle=True, num_workers=workers)
test = DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(epochs):
    for x, y in train:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        seen = sum(len(x) for x, _ in test)
    assert seen == 800, seen
    time.sleep(0.4)
"""


def seen(script: Callable[..., Path], *words: str) -> tuple[float, float, float] | None:
    plain = TrialSpec(Program(str(script(PROGRAM)), words))
    with TrialPool() as pool:
        found = between_epochs(pool, plain, plain, FACTS, math.inf)
    return (found.steps, found.before, found.after) if found else None


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_evaluation_is_whole_though_epochs_are_short(script: Callable[..., Path], workers: str) -> None:
    found = seen(script, "5", workers)
    assert found and found[0] == 100
    assert all(WAITS <= seconds < 20 for seconds in found[1:])


def test_of_one_epoch_it_is_what_comes_after_the_last_step(script: Callable[..., Path]) -> None:
    found = seen(script, "1", "0")
    assert found and min(found[1:]) >= WAITS


def test_a_program_that_fails_tells_nothing(script: Callable[..., Path]) -> None:
    assert seen(script, "5") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"framework": "keras"},
        {"inference": True},
        {"samples_per_step": 0.0},
        {"loaders": ()},
        {"loaders": (LoaderFacts(8, 0, True, 800, 0.0),), "samples_per_step": 80.0},
        {"step_seconds": 0.005},
    ],
)
def test_where_epochs_are_short_or_unknown_it_is_not_looked_for(changed: dict[str, object]) -> None:
    assert steps_of_epoch(FACTS) == 100
    assert steps_of_epoch(replace(FACTS, **changed)) is None  # type: ignore[arg-type]


def test_a_whole_run_has_it_after_each_epoch() -> None:
    before = Figures(seconds_per_step=0.1, setup_seconds=2.0)
    after = Figures(seconds_per_step=0.05, setup_seconds=4.0)
    assert run_seconds(before, after, 201) == pytest.approx((22.0, 14.0))
    before = replace(before, epoch_steps=100.5, between_epochs=3.0)
    after = replace(after, epoch_steps=100.5, between_epochs=1.0)
    assert run_seconds(before, after, 201) == pytest.approx((28.0, 16.0))
    ends = replace(before, end_seconds=0.7), replace(after, end_seconds=0.5)
    assert run_seconds(*ends, 201) == pytest.approx((28.7, 16.5))
