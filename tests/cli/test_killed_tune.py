"""A tune that is killed again and again comes to the plan of the one that nobody disturbs."""

from __future__ import annotations

import os
import random
import shutil
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
        code = process.wait()
        return None if code == -signal.SIGKILL else code  # it may have come to its end meanwhile
    finally:
        process.kill()
        process.wait()
        assert not psutil.wait_procs(started, timeout=20)[1]


def forget(place: Path, name: str) -> None:
    """What a tune has left: the next one begins from nothing."""
    for each in (name, f"{name}-state", f"{name}-cache"):
        shutil.rmtree(place / each, ignore_errors=True)


def plan_in(place: Path, name: str) -> Plan:
    """Sees that nothing else was left, and the script is as it was."""
    found = {path.name for path in (place / name).iterdir() if path.suffix != ".html"}
    assert found == {"train.py", "train.overdrive.toml"} and (place / name / "train.py").read_text() == TRAIN
    return Plan.read(place / name / "train.overdrive.toml", catalogue())


def are_alike(one: Plan, other: Plan) -> bool:
    """The same techniques, or gains of which one may be the other."""
    assert one.speedup and other.speedup
    same = [each.name for each in one.techniques] == [each.name for each in other.techniques]
    return same or (one.speedup.low <= other.speedup.high and other.speedup.low <= one.speedup.high)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.fault("100-kills")
def test_a_tune_killed_100_times_comes_to_the_plan_of_the_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tune that comes to its end between two kills is compared, and another one begins from nothing."""
    assert tune(tmp_path, "whole") == 0
    whole, chance = plan_in(tmp_path, "whole"), random.Random(1)
    assert whole.speedup and "sample_cache" in {each.name for each in whole.techniques}
    kills: list[int] = []  # of each tune that has come to its end
    while sum(kills) < KILLS:
        forget(tmp_path, "killed")
        code, here = None, 0
        while code is None:
            more = sum(kills) + here < KILLS
            code = tune(tmp_path, "killed", chance.uniform(0.5, LATEST) if more else None)
            here += code is None
        assert code == 0
        plan = plan_in(tmp_path, "killed")
        assert are_alike(whole, plan), f"{whole.dumps()}\n{plan.dumps()}"
        kills.append(here)
        with capsys.disabled():
            print(f"\na tune killed {here} times: {plan.speedup}, undisturbed {whole.speedup}")
    assert sum(kills) == KILLS
