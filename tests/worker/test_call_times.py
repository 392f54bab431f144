"""What calls took in a whole run: told from bounded memory, as from all of them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from overdrive.worker import call_times
from overdrive.worker.call_times import CallTimes
from overdrive.worker.session import Session


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], CallTimes]:
    """Calls that take so many seconds each, by a clock of the test's."""

    def run(seconds: list[float]) -> CallTimes:
        now, left = [0.0], iter(seconds)

        class Slow(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                now[0] += next(left)
                return x

        monkeypatch.setattr("time.perf_counter", lambda: now[0])
        calls, model, x = CallTimes(), Slow(1, 1), torch.ones(1, 1)
        with Session([], [calls], inference=True), torch.no_grad():
            for _ in seconds:
                model(x)
        return calls

    return run


def test_it_tells_what_calls_took(made: Callable[[list[float]], CallTimes]) -> None:
    calls = made([0.010] * 490 + [0.200] * 10)
    assert calls.sentence() == "p50 10 ms, p99 200 ms"
    half, most = calls.intervals()
    assert half and [half.low, half.estimate, half.high] == pytest.approx([0.010] * 3)
    assert most and most.low <= most.estimate == pytest.approx(0.2)


def test_of_few_calls_it_tells_less(made: Callable[[list[float]], CallTimes]) -> None:
    assert made([0.010]).sentence() == ""
    calls = made([0.010] * 367)
    assert calls.sentence() == "p50 10 ms" and calls.intervals()[1] is None


def test_of_many_it_keeps_a_part_from_all_over_the_run(
    made: Callable[[list[float]], CallTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_times, "_KEPT", 1000)
    chance = random.Random(0)
    took = [chance.expovariate(100) + 0.02 * (n > 10_000) for n in range(20_000)]
    calls = made(took)
    half, most = calls.intervals()
    assert calls._kept <= 1000 and calls._one_in > 1
    assert half and half.low <= np.quantile(took, 0.5) <= half.high
    assert most and most.low <= np.quantile(took, 0.99) <= most.high
