"""What is foretold of batch sizes, and that a real program's steps and gradients come into it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from overdrive.core.json_data import to_json
from overdrive.core.metric import Metric
from overdrive.core.program import Program
from overdrive.search.batch_curve import foretold
from overdrive.search.conduct import SearchRequest, curve_of
from overdrive.search.domain import parse
from overdrive.search.goal import Goal
from overdrive.search.search import CannotSearch
from tests.conftest import IMPORT_TORCH
from tests.schemas import held
from tests.warm_trials import WarmPool

LINEAR = f"""{IMPORT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(4096, 5)
y = x.sum(dim=1, keepdim=True) + torch.randn(4096, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(100):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""


def test_without_noise_a_larger_batch_saves_no_step_and_with_much_it_saves_all() -> None:
    seconds = {16: 1.0, 64: 2.0, 256: 8.0}
    still = foretold("train.py", 64, 1e-9, seconds)
    assert [each.steps for each in still.sizes] == pytest.approx([1, 1, 1])
    assert still.best.batch == 16 and still.best.time == pytest.approx(0.5)
    loud = foretold("train.py", 64, 1e9, seconds)
    assert [each.steps for each in loud.sizes] == pytest.approx([4, 1, 0.25])
    assert [each.rate for each in loud.sizes] == pytest.approx([0.25, 1, 4])
    assert [each.time for each in loud.sizes] == pytest.approx([2, 1, 1])


def test_at_the_noise_scale_twice_the_least_steps_are_made_with_half_the_highest_rate() -> None:
    found = foretold("train.py", 100, 100.0, {100: 1.0, 10**9: 1.0})
    assert found.sizes[1].steps == pytest.approx(0.5) and found.sizes[1].rate == pytest.approx(2)
    assert "about 100 samples" in found.sentence() and "2 times the learning rate" in found.sentence()


def test_where_no_direction_is_seen_the_scale_is_said_to_be_above_what_was_seen() -> None:
    found = foretold("train.py", 64, math.inf, {64: 1.0, 128: 1.0})
    assert found.at_least and "above 2,000 samples" in found.sentence()
    assert 0.5 < found.sizes[1].steps < 0.55


def request(path: Path, *wishes: str) -> SearchRequest:
    metric = Metric()
    return SearchRequest(Program(str(path)), tuple(map(parse, wishes)), metric, Goal.parse("best", metric), 60.0)


def test_a_program_whose_noise_is_known(script: Callable[[str], Path]) -> None:
    said: list[str] = []
    with WarmPool() as pool:
        found = curve_of(request(script(LINEAR), "batch-size=8,64"), pool, said.append)
    assert [each.batch for each in found.sizes] == [8, 16, 64] and found.default == 16
    # Of y = sum(x) + noise at weights near 0, |G|^2 is about 20, and a sample's gradient has a variance of some 220.
    assert not found.at_least and 4 < found.noise_scale < 40
    assert all(each.seconds > 0 for each in found.sizes)
    held("batch-curve", to_json(found))
    assert said == [f"the time of a step with batches of {size}" for size in (16, 8, 64)]


def test_a_program_without_a_batch_is_told_so(script: Callable[[str], Path]) -> None:
    loader = "loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)"
    assert loader in LINEAR
    path = script(LINEAR.replace(loader, "loader = [(x, y)]"))
    with WarmPool() as pool, pytest.raises(CannotSearch, match="No batch size"):
        curve_of(request(path), pool, str)
