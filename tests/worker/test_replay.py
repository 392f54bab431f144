"""What a state holds that steps are replayed from, and what is compared of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.seams.hub import Seams
from overdrive.worker.observers import make_replay
from overdrive.worker.session import Session
from overdrive.worker.torch import state
from overdrive.worker.torch.replay import kept

STEPS = tuple(range(1, 7))


class Estimating(torch.optim.SGD):
    """As Prodigy, D-Adaptation and schedule-free optimizers do, it keeps what it has learned in its groups."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, lr=lr)
        for group in self.param_groups:
            group.update(estimate=1.0, steps=0, total=torch.zeros(()), name="all")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            norm = sum(each.grad.norm() for each in group["params"])
            group["estimate"] *= 1 + float(norm)
            group["steps"] += 1
            group["total"] += norm
            for each in group["params"]:
                each -= group["lr"] * group["estimate"] / (1 + group["total"]) * each.grad
        return None


class Trained:
    """A program, as one of the runs that a proof makes."""

    def __init__(self, role: str, folder: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "live_modules", lambda: [model])
        self.replay = make_replay("torch", role, STEPS, folder)
        self.model, self.told = model, dict[int, Any]()
        self.call: Callable[[torch.Tensor], torch.Tensor] = model

    def run(self, before: Callable[[int, Any], None] = lambda step, optimizer: None) -> dict[str, Any]:
        torch.manual_seed(0)
        with Session([], [self.replay]) as session:
            optimizer = Estimating([each for each in self.model.parameters() if each.requires_grad])
            for step in STEPS:
                before(step, optimizer)
                self.told[step] = {
                    name: float(each) for name, each in optimizer.param_groups[0].items() if name in ("lr", *KEPT)
                }
                optimizer.zero_grad()
                self.call(torch.randn(5, 4)).square().mean().backward()
                optimizer.step()
        assert not session.seams.left_out, session.seams.left_out
        return self.replay.report()


KEPT = ("estimate", "steps", "total")


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 1)


def test_what_an_optimizer_sets_in_its_groups_is_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A free run's estimate is another one after some steps, and so was every step that it scaled."""

    def otherwise(step: int, optimizer: Any) -> None:
        if step == 3:  # the state has been loaded, and this step goes its own way
            group = optimizer.param_groups[0]
            group["estimate"] *= 1.5
            group["total"] += 1
            group["lr"] = 0.02  # the program's own

    reference = Trained("reference", tmp_path, linear(), monkeypatch)
    reference.run()
    candidate = Trained("candidate", tmp_path, linear(), monkeypatch)
    told = candidate.run(otherwise)
    assert told["states"] == list(STEPS)
    assert candidate.told[3]["estimate"] != reference.told[3]["estimate"]
    for step in (1, 2, 4, 5, 6):
        for name in KEPT:
            assert candidate.told[step][name] == pytest.approx(reference.told[step][name], abs=0), (step, name)
    assert candidate.told[4]["lr"] == 0.02 != reference.told[4]["lr"], "what no step sets is compared elsewhere"


class OnAGraph(nn.Module):
    def __init__(self, nodes: int) -> None:
        super().__init__()
        places = torch.tensor([[0, 1, nodes - 1], [1, 0, 2]])
        self.register_buffer(
            "adjacency", torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, 3.0]), (nodes, nodes))
        )
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_large_sparse_buffer_is_saved_and_compared_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made dense, this one would take 4 TB."""
    Trained("reference", tmp_path, OnAGraph(1_000_000), monkeypatch).run()
    told = Trained("candidate", tmp_path, OnAGraph(1_000_000), monkeypatch).run()
    assert told["states"] == list(STEPS)
    rows = [row for row in told["rows"] if row["tensor"] == "adjacency"]
    assert rows and all(row["error"] == 0 for row in rows)


class Neighbours(nn.Module):
    """Its graph is none of its buffers, as LightGCN's."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        graph = torch.rand(5, 5).round(decimals=1)
        self.graph = graph.to_sparse() if layout == "coo" else graph.to_sparse_csr()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.sparse.mm(self.graph, x))


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_step_over_a_sparse_matrix_is_taken_in_fp64(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trained("reference", tmp_path, Neighbours(layout), monkeypatch).run()
    told = Trained("candidate", tmp_path, Neighbours(layout), monkeypatch).run()
    assert told["states"] == list(STEPS)
    gradients = [row for row in told["rows"] if row["kind"] == "gradient" and row["tensor"] == "layer.weight"]
    assert all(0 < row["error"] < 1e-6 * row["size"] for row in gradients), "fp32 beside fp64"


class ByMethod(nn.Module):
    """Trained by a method that has used weights before it calls a part: LightGCN and many word vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat([self.first.weight, self.last.weight]).mean(0) * x)  # type: ignore[no-any-return]

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x)


@pytest.mark.parametrize("method, first", [("score", 2), ("whole", 1)])
def test_no_state_is_taken_in_the_midst_of_a_first_step(
    method: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for role in ("reference", "candidate"):
        run = Trained(role, tmp_path, ByMethod(), monkeypatch)
        run.call = getattr(run.model, method)
        told.append(run.run())
    assert told[0]["states"] == told[1]["states"] == list(range(first, 7))
    assert told[0]["out_of_reach"] == list(range(1, first))
    assert all(row["error"] <= 1e-6 * max(row["size"], 1e-3) for row in told[1]["rows"] if row["kind"] == "gradient")


def spread_out(layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    dense = torch.randn(1200, 1000) * (torch.rand(1200, 1000) < 0.1)
    if layout == "rows":
        return dense, torch.sparse_coo_tensor(torch.arange(1200)[None], dense, dense.shape)
    if layout == "twice":
        halves = (dense / 2).to_sparse()
        places, values = halves.indices(), halves.values()
        return dense, torch.sparse_coo_tensor(torch.cat([places, places], 1), torch.cat([values, values]), dense.shape)
    return dense, {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[layout]()


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "rows", "twice"])
def test_the_same_elements_are_kept_of_a_sparse_tensor_and_of_a_dense_one(layout: str) -> None:
    dense, sparse = spread_out(layout)
    assert (kept(sparse) == kept(dense)).all()


def test_of_an_empty_sparse_tensor_there_is_nothing() -> None:
    assert kept(torch.zeros(0, 3).to_sparse()).size == 0
    assert (kept(torch.zeros(2, 3).to_sparse()) == 0).all()


class Waves(nn.Module):
    """Complex weights, as neural operators have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("phase", torch.randn(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight + self.phase).abs()


def test_imaginary_parts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of complex weights only the real parts were: a gradient whose imaginary part is off passed."""
    Trained("reference", tmp_path, Waves(), monkeypatch).run()
    own = Trained("candidate", tmp_path, Waves(), monkeypatch).run()
    off = Waves()
    off.weight.register_hook(lambda gradient: torch.complex(gradient.real, 1.01 * gradient.imag))
    found = Trained("candidate", tmp_path, off, monkeypatch).run()
    kinds = {(row["kind"], row["tensor"]) for row in own["rows"]}
    assert {("initial value", "weight"), ("gradient", "weight"), ("buffer", "phase")} <= kinds
    assert all(row["error"] <= 1e-6 * max(row["size"], 1e-3) for row in own["rows"] if row["kind"] == "gradient")
    gradients = [row for row in found["rows"] if row["kind"] == "gradient"]
    assert all(row["error"] > 1e-3 * row["size"] and row["count"] == 8 for row in gradients), gradients


@pytest.mark.parametrize("inference", [False, True])
def test_a_careful_reference_computes_on_one_thread(
    inference: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for name in ("set_float32_matmul_precision", "use_deterministic_algorithms"):
        monkeypatch.setattr(torch, name, lambda *_, **__: None)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)  # is put back
    make_replay("torch", "reference", (1,), tmp_path, inference)(Seams())
    assert not threads
    make_replay("torch", "careful reference", (1,), tmp_path, inference)(Seams())
    assert threads == [1]
