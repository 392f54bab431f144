"""`device` and `deferred_scalars` on a GPU. Skipped, saying so, where there is none."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from overdrive.worker.session import Session
from tests.conftest import PROGRAMS, Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU (CUDA), and there is none here")

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images, labels = torch.randn(2048, 3, 32, 32), torch.randint(10, (2048,))
data = torch.utils.data.TensorDataset(images, labels)
losses, where = [], set()
for epoch in range(EPOCHS):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        where.add(loss.device.type)
"""


def run(text: str, chosen: list[Any]) -> tuple[dict[str, Any], Session]:
    space: dict[str, Any] = {"__name__": "script"}
    with Session(chosen) as session:
        exec(text, space)
    return space, session


def test_a_script_for_the_cpu_trains_on_the_gpu_to_the_same_losses() -> None:
    text = SCRIPT.replace("EPOCHS", "2")
    plain, _ = run(text, [])
    moved, session = run(text, [("device", {})])
    assert not session.seams.left_out
    assert plain["where"] == {"cpu"} and moved["where"] == {"cuda"}
    assert moved["losses"][:8] == pytest.approx(plain["losses"][:8], rel=1e-3)
    assert all(each.device.type == "cpu" for each in moved["model"].parameters())


@pytest.mark.parametrize(
    "command",
    [
        ("gan.py", "--steps", "6"), ("lstm_stateful.py", "--epochs", "1"),
        ("chargpt_memmap.py", "--steps", "8", "--eval_iters", "1"),
        ("timeseries_lbfgs.py", "--steps", "1"), ("reinforce.py", "--episodes", "3"), ("vae.py", "--epochs", "1"),
        ("dict_collate.py", "--epochs", "1"), ("weight_tied_ema.py", "--steps", "10"),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_programs_that_know_no_gpu_run_on_it(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    available = torch.cuda.is_available  # these ask, and must hear no: they are written for both
    source = (PROGRAMS / command[0]).read_text().replace("torch.cuda.is_available()", "False")
    path = tmp_path / command[0]
    path.write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(command))
    assert available()
    before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
    with Session([("device", {})]) as session:
        runpy.run_path(str(path), run_name="__main__")
    assert not session.seams.left_out
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > before
    assert "cuda" not in capsys.readouterr().out


def test_what_is_saved_opens_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with Session([("device", {})]):
        model = nn.Linear(4, 2)
        torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(torch.randn(3, 4))
        assert out.is_cuda and "device" not in repr(out) and out.detach().numpy().shape == (3, 2)
        torch.save({"model": model.state_dict(), "out": out}, path)
    assert all(not each.is_cuda for each in torch.load(path, weights_only=True)["model"].values())
    torch.save(torch.ones(2).cuda(), path)
    assert torch.load(path, weights_only=True).is_cuda  # nothing of it stays behind


OTHERS = [
    *(("channels_last",), ("autocast",), ("fused_optimizer",), ("compile",), ("sample_cache",), ("deferred_scalars",)),
    *(("cuda_graphs",), ("cuda_graphs", "deferred_scalars"), ("prefetch", "sample_cache"), ("device_resident",)),
]


@pytest.mark.parametrize("others", OTHERS, ids=" ".join)
def test_others_go_with_it(others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path))
    text = SCRIPT.replace("EPOCHS", "2")
    alone, _ = run(text, [("device", {})])
    moved, session = run(text, [("device", {}), *((other, {}) for other in others)])
    assert not session.seams.left_out and moved["where"] == {"cuda"}
    close = 0.05 if "autocast" in others else 1e-3
    assert moved["losses"][:8] == pytest.approx(alone["losses"][:8], rel=close)


LATE = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = []
for step in range(60):
    x, y = torch.randn(512, 512).cuda(), torch.randint(8, (512,)).cuda()
    out = model(x)
    part = out.square().mean()
    loss = nn.functional.cross_entropy(out, y) + 0.01 * part
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = (out.argmax(1) == y).sum()
    seen += [loss.item(), part.item(), float(loss.detach()), right.item()]
    with torch.no_grad():
        loss *= 2
    seen.append(loss.item())
"""


def test_early_numbers_are_the_programs_own() -> None:
    plain, _ = run(LATE, [])
    again, _ = run(LATE, [])
    early, session = run(LATE, [("deferred_scalars", {})])
    assert not session.seams.left_out
    assert plain["seen"] == again["seen"], "this program does not repeat itself here"
    assert early["seen"] == plain["seen"]
    assert session.handles["deferred_scalars"].notes.reads == 180


def test_an_early_number_does_not_wait_for_what_follows() -> None:
    with Session([("deferred_scalars", {})]):
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):  # the first read makes the stream and the memory
            loss = (weight * 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.cuda._sleep(2_000_000_000)  # about a second of work behind the mark
            behind = torch.cuda.current_stream().record_event()
            assert loss.item() == 8.0
        assert not behind.query()  # still at work when the number was there
        torch.cuda.synchronize()


@pytest.mark.tunes
def test_tune_shows_cpu_against_gpu(script: Callable[[str], Path], overdrive: Run, tmp_path: Path) -> None:
    path, out = script(SCRIPT.replace("EPOCHS", "400")), tmp_path / "result.json"
    done = overdrive("tune", "--contract", "statistical", "--budget", "150s", "--json", str(out), path.name,
                     cwd=path.parent, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())["devices"]
    assert [row["device"] for row in rows] == ["CPU", "GPU"] and all(row["samples_per_s"] > 0 for row in rows)
    assert "the same script on" in done.stdout
