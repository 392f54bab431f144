"""The layout techniques on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.core.settings import Chosen
from overdrive.worker.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.conv2, self.fc = nn.Conv2d(16, 32, 3), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x)), inplace=True), 2)
        return self.fc(F.max_pool2d(F.relu(self.conv2(x)), 2).amax((2, 3)))  # type: ignore[no-any-return]


def train(techniques: list[Chosen], steps: int = 8) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    with Session(techniques):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(10, (32,), device="cuda")
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_library_autotune_sets_the_gpus_libraries_and_puts_them_back() -> None:
    benchmark, blas = torch.backends.cudnn.benchmark, torch.backends.cuda.preferred_blas_library()
    plan: list[Chosen] = [("library_autotune", {"benchmark": True, "blas": "cublaslt"})]
    with Session(plan) as session:
        torch.optim.SGD(nn.Linear(2, 2).cuda().parameters(), lr=0.1)
        assert torch.backends.cudnn.benchmark
        assert torch.backends.cuda.preferred_blas_library() == torch._C._BlasBackend.Cublaslt
    assert not session.seams.left_out
    assert torch.backends.cudnn.benchmark is benchmark and torch.backends.cuda.preferred_blas_library() == blas
    assert train(plan)[0] == pytest.approx(train([])[0], rel=1e-2)


def test_fft_convolution_agrees_whatever_it_chooses() -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(16, 16, 1025, padding=512, groups=16).cuda()
    x = torch.randn(4, 16, 4096, device="cuda")
    expected = model(x)
    with Session([("fft_convolution", {})]) as session:
        made = model(x)
        made.sum().backward()
    assert not session.seams.left_out and torch.allclose(made, expected, rtol=1e-2, atol=1e-2)
