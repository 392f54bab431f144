"""A tune that is killed again and again comes to the plan of the one that nobody disturbs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from overdrive.core.plan import Plan
from overdrive.techniques.catalogue import catalogue

pytest.importorskip("torch")

KILLS = 100
LATEST = 12.0  # seconds after the start, of a kill: what was not established by then is begun anew each time
BUDGET = "90s"

# Samples that take most of a step, and can be kept.
TRAIN = """
import torch
torch.manual_seed(0)
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, i):
        x = torch.full((64,), float(i) / 256)
        for _ in range(60):
            x = (x + 0.1).sin()
        return x, i % 2
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(Samples(), batch_size=16, shuffle=True)
for epoch in range(500):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def tune(place: Path, name: str, killed_after: float | None = None) -> int | None:
    """The exit code; None where it was killed. All that it started is gone then, within seconds."""
    folder = place / name
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    own = {"XDG_STATE_HOME": str(place / f"{name}-state"), "OVERDRIVE_CACHE": str(place / f"{name}-cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "overdrive", "tune", "--budget", BUDGET, "train.py"],
        cwd=folder,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started: list[psutil.Process] = []
    try:
        return process.wait(killed_after)
    except subprocess.TimeoutExpired:
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        return None
    finally:
        process.kill()
        process.wait()
        assert not psutil.wait_procs(started, timeout=20)[1]


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.fault("100-kills")
def test_a_tune_killed_100_times_comes_to_the_plan_of_the_undisturbed_one(tmp_path: Path) -> None:
    assert tune(tmp_path, "whole") == 0
    chance, kills, code = random.Random(1), 0, None
    while kills < KILLS and code is None:
        code = tune(tmp_path, "killed", chance.uniform(0.5, LATEST))
        kills += code is None
    if code is None:
        code = tune(tmp_path, "killed")
    assert code == 0
    one, other = (Plan.read(tmp_path / name / "train.overdrive.toml", catalogue()) for name in ("whole", "killed"))
    assert one.speedup and other.speedup and "sample_cache" in {each.name for each in one.techniques}
    same = [each.name for each in one.techniques] == [each.name for each in other.techniques]
    overlap = one.speedup.low <= other.speedup.high and other.speedup.low <= one.speedup.high
    assert same or overlap, f"{one.dumps()}\n{other.dumps()}"
    for name in ("whole", "killed"):  # nothing else was left, and the script is as it was
        assert {path.name for path in (tmp_path / name).iterdir()} <= {"train.py", "train.overdrive.toml"} | {
            path.name for path in (tmp_path / name).glob("*.html")
        }
        assert (tmp_path / name / "train.py").read_text() == TRAIN
    print(f"killed {kills} times, then {other.speedup}, undisturbed {one.speedup}")
