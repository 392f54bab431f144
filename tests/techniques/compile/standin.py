"""A stand-in for CUDA graphs on the CPU: a captured graph that computes again, and writes the results in place.

For the injection of faults, which asks whether the program goes on. It replays by calling Python and knows no streams:
whether `cuda_graphs` works is asked of `tests.fakes`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from overdrive.techniques.compile.cuda_graphs import captured_graph as captured


class StandInCapturedGraph:
    def __init__(self, graph_pool: StandInGraphPool) -> None:
        self.graph_pool = graph_pool

    def record(self, work: Any) -> list[Any]:
        if self.graph_pool.broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.work = work
        before = [(each, each.detach().clone()) for each in self.graph_pool.touched()]
        state = torch.get_rng_state()
        self.kept = [each if each is None else each.detach().clone() for each in work()]
        torch.set_rng_state(state)
        with torch.no_grad():
            for each, value in before:  # a recording changes nothing
                each.data.copy_(value)  # nor does autograd see any
        self.graph_pool.recorded += 1
        return list(self.kept)

    def replay(self) -> None:
        self.graph_pool.replays += 1
        for kept, made in zip(self.kept, self.work(), strict=True):
            if kept is not None:
                kept.copy_(made.detach())


class StandInGraphPool:
    recorded = replays = 0
    broken = False
    notes: tuple[str, ...] = ()

    @staticmethod
    def touched() -> list[torch.Tensor]:
        """What work may change besides what it makes: set by a test."""
        return []

    def __init__(self, device: torch.device) -> None:
        pass

    def captured(self) -> StandInCapturedGraph:
        return StandInCapturedGraph(type(self))  # type: ignore[arg-type]

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        noted: list[str] = []
        yield noted
        noted += self.notes

    def stream(self) -> Any:
        return None

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)


@pytest.fixture
def graph_pool(monkeypatch: pytest.MonkeyPatch) -> type[StandInGraphPool]:
    return stand_in(monkeypatch)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandInGraphPool]:
    class GraphPool(StandInGraphPool):
        pass

    monkeypatch.setattr(captured, "CudaGraphPool", GraphPool)
    monkeypatch.setattr(captured, "DEVICE", "cpu")
    # torch's optimizers refuse to be captured on a CPU, where the stand-in has them be.
    for module in ("adam", "nadam", "rmsprop", "adadelta", "adamax", "rprop"):
        monkeypatch.setattr(
            importlib.import_module(f"torch.optim.{module}"),
            "_get_capturable_supported_devices",
            lambda *_, **__: ["cpu", "cuda"],
        )
    return GraphPool
