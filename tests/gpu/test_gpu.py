"""The techniques on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from overdrive.core.settings import Chosen
from overdrive.worker.session import Session
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
        ("device_resident", {}),
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


@pytest.mark.tunes
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


AUGMENTED = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
random.seed(1)
np.random.seed(2)
torch.manual_seed(0)


class Images(Dataset):
    def __init__(self):
        self.pixels = np.random.default_rng(0).integers(0, 255, (2048, 3, 40, 40), dtype=np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        x, y = AT
        image = torch.from_numpy(self.pixels[index, :, y:y + 32, x:x + 32]).float() / 255
        return image, index % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
losses = []
for epoch in range(3):
    for x, y in DataLoader(images if epoch else (images := Images()), batch_size=64, shuffle=True):
        x, y = x.to("cuda"), y.cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
states = random.getstate(), torch.get_rng_state().tolist(), torch.cuda.get_rng_state().tolist()
"""


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("prefetch", "4, 4"),
        ("device_resident", "4, 4"),
    ],
)
def test_batches_that_are_on_the_gpu_before_train_to_the_same_bit(
    name: str, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path))
    before = torch.are_deterministic_algorithms_enabled()
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(before))
    torch.use_deterministic_algorithms(True, warn_only=True)
    seen = []
    with_us: list[Chosen] = [("sample_cache", {}), (name, {})]
    for chosen in ([], [], with_us):
        namespace: dict[str, object] = {"__name__": "script"}
        with Session(chosen) as session:
            exec(AUGMENTED.replace("AT", at), namespace)
        assert not session.seams.left_out
        seen.append((namespace["losses"], namespace["states"]))
    assert seen[0] == seen[1], "this program does not repeat itself here"
    assert seen[1] == seen[2]
    handle: Any = session.handles[name]
    offers = (handle.prefetcher if name == "prefetch" else handle.residence).offers
    assert offers.given > 10


def test_a_copy_made_ahead_waits_for_its_turn() -> None:
    from overdrive.datacache.offers import Copier

    copier = Copier(torch.device("cuda", torch.cuda.current_device()))
    sources = [torch.full((4 << 20,), float(number)).pin_memory() for number in range(20)]
    gives = [copier.start(source) for source in sources]
    copies = [give() for give in gives]
    assert all(bool((copy == number).all()) for number, copy in enumerate(copies))
    assert copies[0].stride() == sources[0].stride()
