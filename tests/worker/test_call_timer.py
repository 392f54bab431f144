"""The time of a model's calls, without what lies between them."""

from __future__ import annotations

import threading
from typing import Any

import torch

from overdrive.engines.session import Answering
from overdrive.worker.call_timer import CallTimer
from overdrive.worker.session import Session
from tests.engines.graph_runtime import Graphs


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
    assert timer.taken().seconds == (1.0, 1.0, 1.0) and waited == ["device"] * 3
    assert timer.taken().seconds == ()


def test_a_call_of_another_thread_has_its_own_time(monkeypatch: Any) -> None:
    def run(model: Any, between: Any) -> None:
        model(torch.ones(1, 2))
        thread = threading.Thread(target=model, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()

    assert timed(monkeypatch, run)[0].taken().seconds == (1.0, 1.0)


def test_calls_that_only_the_beginning_of_a_run_makes_twice_are_no_usual_ones(monkeypatch: Any) -> None:
    """They are more than one in a hundred of a trial's calls: a p99 with them would be that of no whole run."""
    now = [0.0]

    def take(seconds: float, result: Any) -> Any:
        now[0] += seconds
        return result

    monkeypatch.setattr("overdrive.worker.call_timer.time.perf_counter", lambda: now[0])
    model, timer = torch.nn.Linear(2, 2).eval(), CallTimer(lambda: None)
    with Session([], [timer.watch], inference=True) as session:
        seams = session.seams
        with seams.owned_by("engine"):
            answering = Answering(Graphs(lambda array: take(1, array)), "engine", seams)
            seams.model_called.subscribe_innermost(answering.called)
            seams.model_called.subscribe_innermost(lambda model, call, *args: take(2, call(*args)))
        with torch.no_grad():
            for _ in range(10):
                model(torch.ones(1, 2))
            timer.taken()
            for _ in range(1040):
                model(torch.ones(1, 2))
    assert answering.told().startswith("engine answered 1,042 of 1,050 calls")
    taken = timer.taken()
    assert len(taken.seconds) == 1040 and taken.seconds.count(3.0) == 6  # 32, 64, 128, 256; 512 and 1024
    assert taken.usual.count(3.0) == 2 and taken.usual.count(1.0) == len(taken.usual) - 2 == 1034
