"""The precision techniques on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")


def capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


class Net(nn.Module):
    """Convolutions, normalisations of both kinds, and Linear layers that fp8 can take."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.one, self.layer, self.two = nn.Linear(2048, 256), nn.LayerNorm(256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.batch(self.conv(x))), 2)
        x = nn.functional.gelu(self.layer(self.one(x.flatten(1))))
        return self.head(torch.relu(self.two(x)))


def train(*techniques: Any, dtype: torch.dtype = torch.float32, steps: int = 40) -> dict[str, Any]:
    torch.manual_seed(0)
    images, labels = torch.randn(256, 3, 16, 16, dtype=dtype).cuda(), torch.randint(10, (256,)).cuda()
    losses: list[torch.Tensor] = []
    with Session(techniques) as session:
        model = Net().to(dtype).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(steps):
            part = slice(64 * (step % 4), 64 * (step % 4) + 64)
            loss = nn.functional.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        seen: dict[str, Any] = {
            "losses": [loss.item() for loss in losses],
            "types": {parameter.dtype for parameter in model.parameters()},
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "left_out": dict(session.seams.left_out),
            "loss_type": loss.dtype,
        }
    return seen | {"model": model, "after": {parameter.dtype for parameter in model.parameters()}}


def learns_alike(plain: dict[str, Any], seen: dict[str, Any]) -> bool:
    return abs(plain["losses"][-1] - seen["losses"][-1]) < 0.25 and seen["losses"] != plain["losses"]


@pytest.mark.skipif(capability() < (8, 0), reason="TF32 came with compute capability 8.0")
def test_tf32_rounds_products_and_is_put_back() -> None:
    a = torch.randn(512, 512, device="cuda")
    exact = a.double() @ a.double()

    def error() -> float:
        return float(((a @ a).double() - exact).norm() / exact.norm())

    before = error()
    with Session([("tf32", {})]) as session:
        torch.optim.SGD(nn.Linear(4, 4).cuda().parameters(), lr=0.1)
        inside = error()
        assert not session.seams.left_out
    assert before < 1e-5 < inside < 1e-2 and error() == pytest.approx(before)
    plain, seen = train(), train(("tf32", {}))
    assert seen["tf32"] and not plain["tf32"] and learns_alike(plain, seen)


@pytest.mark.skipif(capability() < (8, 0), reason="bf16 came with compute capability 8.0")
def test_bf16_weights_learn_and_need_less_memory() -> None:
    plain, seen = train(), train(("bf16_weights", {}))
    assert not seen["left_out"] and seen["types"] == {torch.float32} and learns_alike(plain, seen)

    def kept(*techniques: Any) -> int:
        """Bytes that a forward pass keeps for the backward pass."""
        with Session(techniques):
            model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(256), nn.GELU()) for _ in range(8)]).cuda()
            torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(4096, 256, device="cuda", requires_grad=True)
            model(x)
            before = torch.cuda.memory_allocated()
            out = model(x)
            size = torch.cuda.memory_allocated() - before
            del out
        return size

    assert kept(("bf16_weights", {})) < 0.75 * kept()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_learns_or_says_that_the_chip_cannot(dtype: str) -> None:
    plain, seen = train(), train(("autocast", {"dtype": dtype}))
    if dtype == "bfloat16" and capability() < (8, 0):
        assert "no bf16" in seen["left_out"]["autocast"]
    else:
        assert not seen["left_out"] and learns_alike(plain, seen)


def test_a_programs_own_autocast_and_scaler_are_left_alone() -> None:
    with Session([("autocast", {"dtype": "float16"})]) as session:
        model = nn.Linear(16, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.ones(8, 16, device="cuda")).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert "of its own" in session.seams.left_out["autocast"]
        assert torch.isfinite(loss)


@pytest.mark.parametrize("weights", ["narrowed", "copied"])
def test_a_program_in_double_trains_in_32_bits(weights: str) -> None:
    plain = train(dtype=torch.float64)
    seen = train(("fp32_from_fp64", {"weights": weights}), dtype=torch.float64)
    assert not seen["left_out"] and seen["loss_type"] is torch.float64
    assert seen["types"] == {torch.float32 if weights == "narrowed" else torch.float64}
    assert seen["after"] == {torch.float64} and learns_alike(plain, seen)


@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao (pip install torchao)")
def test_fp8_learns_or_says_that_the_chip_cannot() -> None:
    plain, seen = train(), train(("fp8", {}))
    if capability() < (8, 9):
        assert "no fp8 arithmetic" in seen["left_out"]["fp8"]
    else:
        assert not seen["left_out"] and learns_alike(plain, seen)
    assert type(seen["model"].one) is nn.Linear
