"""Ranks on a real Ray (`pip install "ray[train]"`), which each test starts on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("ray")
pytestmark = pytest.mark.cluster

PROGRAM = """
import os, sys, time, torch
torch.manual_seed(0)
x, y = torch.randn(200, 20), torch.randint(3, (200,))
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    for start in range(0, 200, 30):
        loss = torch.nn.functional.cross_entropy(model(x[start : start + 30]), y[start : start + 30])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{epoch} {loss.item():.4f}", flush=True)
    if sys.argv[1:] == ["fails"]:
        raise ValueError("bad")
    if sys.argv[1:] == ["waits"]:
        time.sleep(1000)
print("at the end", file=sys.stderr)
open("written", "w").write(f"{loss.item():.4f}")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def command(script: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "overdrive", "run", "--ranks", "2", "--on", "ray", str(script), *arguments]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_the_numbers_and_files_are_those_of_one_process(script: Path, tmp_path: Path) -> None:
    plain, on_ray = tmp_path / "plain", tmp_path / "ray"
    plain.mkdir()
    on_ray.mkdir()
    expected = run([sys.executable, str(script)], plain)
    found = run(command(script), on_ray)
    assert found.returncode == 0, found.stderr
    assert found.stdout == expected.stdout and "at the end" in found.stderr and "21 steps" in found.stderr
    assert [each.name for each in on_ray.iterdir()] == ["written"]
    assert (on_ray / "written").read_text() == (plain / "written").read_text()


def test_an_error_ends_all_with_its_traceback(script: Path, tmp_path: Path) -> None:
    found = run(command(script, "fails"), tmp_path)
    assert found.returncode == 1 and "ValueError: bad" in found.stderr and found.stdout.startswith("0 ")


def test_no_process_is_left_where_it_is_stopped(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = command(script, "waits")
    started = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout and started.stdout.readline().startswith(b"0 ")
    started.send_signal(signal.SIGINT)
    assert started.wait(60)
    for _ in range(100):
        left = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, text=True).stdout.split()
        if not left:
            return
        time.sleep(0.2)
    pytest.fail(f"processes are left: {left}")
