"""Two ranks with a GPU each, by NCCL. Skipped, saying so, where there are not two."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Run

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs (CUDA)")

# Were both on one GPU, NCCL would refuse.
TRAINS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images = torch.rand(200, 3, 8, 8)
data = torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) * 1000).long() % 4)
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):  # a last batch of eight
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("loss", f"{loss.item():.9f}", f"{norm.item():.9f}")
"""


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"\d+\.\d{9}", text)]


@pytest.mark.parametrize("layout", ["data=2", "zero1=2", "shard=2"])
def test_two_ranks_print_the_losses_of_one_process(
    layout: str, script: Callable[[str], Path], overdrive: Run, python: Run
) -> None:
    path = script(TRAINS)
    alone = python(path.name, cwd=path.parent)
    done = overdrive("run", "--ranks", "2", "--layout", layout, path.name, cwd=path.parent, timeout=120)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == pytest.approx(numbers(alone.stdout), rel=1e-3) and len(numbers(done.stdout)) == 28
