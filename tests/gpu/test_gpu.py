"""The techniques on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from overdrive.session import Session
from tests.conftest import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images, labels = torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,))
data = torch.utils.data.TensorDataset(images, labels)
for epoch in range(EPOCHS):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{loss.item():.4f}")
"""


@pytest.mark.parametrize(
    "technique",
    [
        ("channels_last", {}),
        ("autocast", {"dtype": "bfloat16"}),
        ("autocast", {"dtype": "float16"}),
        ("fused_optimizer", {}),
        ("compile", {}),
        ("sample_cache", {}),
        ("loader_workers", {}),
    ],
    ids=lambda each: f"{each[0]}-{each[1].get('dtype', '')}",
)
def test_a_technique_trains_on_the_gpu(technique: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    losses = []
    for chosen in ([], [technique]):
        namespace: dict[str, object] = {"__name__": "script"}
        with Session(chosen) as session:
            exec(SCRIPT.replace("EPOCHS", "2"), namespace)
        assert not session.seams.left_out
        losses.append(float(namespace["loss"]))  # type: ignore[arg-type]
    assert abs(losses[0] - losses[1]) < 0.25


def test_tune_on_the_gpu(script: Callable[[str], Path], overdrive: Run, tmp_path: Path) -> None:
    path = script(SCRIPT.replace("EPOCHS", "400"))
    out = tmp_path / "result.json"
    done = overdrive(
        "tune", "--contract", "statistical", "--budget", "100s", "--json", str(out), path.name,
        cwd=path.parent, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["baseline"]["samples_per_s"] > 0
    assert result["duels"][0]["name"] == "control (A/A)"
