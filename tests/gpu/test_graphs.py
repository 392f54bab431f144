"""CUDA graphs, really captured and replayed. Skipped, saying so, where there is no GPU.

What surrounds capture and replay is tested in tests/techniques/compile/test_cuda_graphs.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.techniques.compile.cuda_graphs import captured_graph as captured
from overdrive.worker.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")

STEPS = 30


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout)
        )
        self.head = nn.Linear(16 * 15 * 15, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Reading(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out * 2 if out.mean().item() > 0 else out


class Counted(captured.CudaCapturedGraph):
    replays = 0

    def replay(self) -> None:
        Counted.replays += 1
        super().replay()


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Counted.replays = 0
    monkeypatch.setattr(captured, "CudaCapturedGraph", Counted)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def train(
    on: bool,
    make: Callable[[], nn.Module] = Net,
    optimizer_of: Callable[[Any], torch.optim.Optimizer] = lambda each: torch.optim.SGD(each, lr=0.01, momentum=0.9),
    autocast: bool = False,
    micro_batches: int = 1,
    schedule: bool = False,
    settings: dict[str, Any] | None = None,
) -> tuple[list[float], dict[str, str], nn.Module]:
    torch.manual_seed(0)
    with Session([("cuda_graphs", settings or {})] if on else []) as session:
        model = make().cuda()
        optimizer = optimizer_of(model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if schedule else None
        data, labels = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(10, (64,), device="cuda")
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            for _ in range(micro_batches):
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(model(data), labels)
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if scheduler:
                scheduler.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(model(data).sum().item())
    return losses, session.seams.left_out, model


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"settings": {"parts": "all"}},
        {"settings": {"parts": "model"}},
        {"settings": {"parts": "optimizer"}},
        {"optimizer_of": lambda each: torch.optim.Adam(each, lr=1e-3)},
        {"optimizer_of": lambda each: torch.optim.AdamW(each, lr=1e-3, fused=True)},
        {"optimizer_of": lambda each: torch.optim.RMSprop(each, lr=1e-4)},
        {"micro_batches": 3},
        {"schedule": True},
        {"schedule": True, "optimizer_of": lambda each: torch.optim.Adam(each, lr=1e-3)},
        {"autocast": True},
    ],
)
def test_a_program_under_graphs_trains_alike(how: dict[str, Any]) -> None:
    plain, *_ = train(False, **{key: value for key, value in how.items() if key != "settings"})
    losses, left_out, _ = train(True, **how)
    assert not left_out and Counted.replays > STEPS // 2
    assert losses[:15] == pytest.approx(plain[:15], rel=0.05 if how.get("autocast") else 1e-3)


def test_what_a_model_draws_differs_from_replay_to_replay() -> None:
    with Session([("cuda_graphs", {"parts": "model"})]) as session:
        model = nn.Sequential(nn.Linear(1000, 1000), nn.Dropout(0.5)).cuda()
        torch.optim.SGD(model.parameters(), lr=0.0)
        masks = []
        for _ in range(12):
            out = model(torch.ones(1, 1000, device="cuda"))
            out.sum().backward()
            masks.append((out == 0).cpu())
    assert not session.seams.left_out and Counted.replays >= 10
    assert all(0.3 < mask.float().mean() < 0.7 for mask in masks)
    assert all(not torch.equal(one, other) for one, other in itertools.pairwise(masks))


def test_a_model_that_reads_values_is_left_as_it_is_and_the_gpu_goes_on() -> None:
    plain, *_ = train(False, make=Reading)
    losses, left_out, _ = train(True, make=Reading, settings={"parts": "model"})
    assert "read on the CPU" in left_out["cuda_graphs"] and Counted.replays == 0
    assert losses[:15] == pytest.approx(plain[:15], rel=1e-3)


def test_a_capture_that_fails_leaves_the_gpu_usable() -> None:
    graph_pool = captured.CudaGraphPool(torch.device("cuda", torch.cuda.current_device()))
    source = torch.ones(4, device="cuda")

    def reads() -> list[Any]:
        return [torch.nn.functional.dropout(source) * source.sum().item()]

    stream = torch.cuda.current_stream()
    with pytest.raises(Exception, match="captur"):
        graph_pool.captured().record(reads)
    assert torch.cuda.current_stream() == stream
    assert torch.nn.functional.dropout(torch.ones(1000, device="cuda")).sum().item() > 0  # draws again
    good = captured.CudaGraphPool(source.device).captured()
    (made,) = good.record(lambda: [source * 2])
    source.fill_(3.0)
    good.replay()
    assert made.tolist() == [6.0] * 4


def test_gradients_that_the_program_keeps_stay() -> None:
    with Session([("cuda_graphs", {})]) as session:
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = []
        for step in range(12):
            out = model(torch.full((2, 8), float(step + 1), device="cuda"))
            optimizer.zero_grad()
            out.sum().backward()
            kept.append((model.bias.grad, model.weight.grad, out.detach(), float(step + 1)))
            optimizer.step()
    assert not session.seams.left_out and Counted.replays
    for bias, weight, _, value in kept:
        assert bool((bias == 2.0).all()) and bool((weight == 2 * value).all())  # type: ignore[union-attr]
    assert len({out.data_ptr() for *_, out, _ in kept}) == len(kept)


def test_compiling_with_graphs_of_its_own_keeps_results_and_gradients() -> None:
    with Session([("compile", {"mode": "reduce-overhead"})]) as session:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        outs = []
        for step in range(8):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(2):
                out = model(torch.full((2, 8), float(step), device="cuda"))
                outs.append((out.detach(), out.detach().clone()))
                out.sum().backward()
            optimizer.step()
    assert not session.seams.left_out
    assert all(torch.equal(now, then) for now, then in outs)
