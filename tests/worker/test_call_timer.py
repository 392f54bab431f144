"""The time of a model's calls, without what lies between them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from overdrive.worker.call_timer import CallTimer
from overdrive.worker.session import Session


def timed(monkeypatch: Any, run: Any) -> tuple[CallTimer, list[str]]:
    """`run` with a clock that a call moves on by 1 and everything else by 100."""
    now, waited = [0.0], []

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            now[0] += 1
            return self.fc(x)

    monkeypatch.setattr("overdrive.worker.call_timer.time.perf_counter", lambda: now[0])
    timer = CallTimer(lambda: waited.append("device"))

    def between() -> None:
        now[0] += 100

    with Session([], [timer.watch], inference=True):
        run(Slow(), between)
    return timer, waited


def test_only_calls_count(monkeypatch: Any) -> None:
    def run(model: Any, between: Any) -> None:
        for _ in range(3):
            between()
            model(torch.ones(1, 2))
        between()

    timer, waited = timed(monkeypatch, run)
    assert timer.taken() == (1.0, 1.0, 1.0) and waited == ["device"] * 3
    assert timer.taken() == ()


def test_a_call_of_another_thread_has_its_own_time(monkeypatch: Any) -> None:
    def run(model: Any, between: Any) -> None:
        model(torch.ones(1, 2))
        thread = threading.Thread(target=model, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()

    assert timed(monkeypatch, run)[0].taken() == (1.0, 1.0)
