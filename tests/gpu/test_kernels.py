"""Kernels of our own on a GPU: as near to 64 bits as torch's. Skipped, saying so, where there is none."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overdrive.worker.session import Session

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which is not installed"),
]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [10, 1000, 50257])
def test_a_cross_entropy_is_as_exact_as_torchs(columns: int, kind: torch.dtype) -> None:
    from overdrive.kernels.cross_entropy.comparison import CrossEntropy
    from overdrive.kernels.cross_entropy.operator import MEAN, NONE, SUM, Call

    x, target = torch.randn(64, columns, device="cuda").to(kind), torch.randint(columns, (64,), device="cuda")
    weight = torch.rand(columns, device="cuda").to(kind)
    for reduction in (NONE, MEAN, SUM):
        call = Call(x, target, None, -100, reduction, 0.0, False)
        for given in (call, replace(call, weight=weight, smoothing=0.1)):
            assert CrossEntropy().differs_on(F.cross_entropy, given) is None


def test_places_beyond_32_bits() -> None:
    from overdrive.kernels.cross_entropy.operator import NONE, Call, computed

    rows, columns = (1 << 31) // 50257 + 100, 50257
    if torch.cuda.mem_get_info()[0] < 3 * rows * columns * 2:
        pytest.skip("needs 13 GB of the GPU's memory")
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    x[-1, 7] = 20.0
    x.requires_grad_()
    losses = computed(Call(x, torch.full((rows,), 7, device="cuda"), None, -100, NONE, 0.0, False))
    losses.float().sum().backward()
    assert float(losses[-1]) < 0.1 and float(losses[-2]) > 10
    assert x.grad is not None and abs(float(x.grad[-1, 7])) < 0.1 and float(x.grad[-2, 7]) < -0.9


@pytest.mark.parametrize("autocast", [False, True])
def test_training_learns_alike(autocast: bool) -> None:
    found = []
    for techniques in ([], [("fast_cross_entropy", {"least": 1})]):
        torch.manual_seed(0)
        with Session(techniques) as session:
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1000)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x, y = torch.randn(256, 32).cuda(), torch.randint(1000, (256,)).cuda()
            losses = []
            for _ in range(20):
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert not session.seams.left_out
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-2 if autocast else 1e-4)
