"""`overdrive tune` from end to end on real programs in real processes. Budgets are small; no speed is asserted
but that of a data set that sleeps, whose cache cannot fail to win. What searches decide is in test_search.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from overdrive.core.plan import Plan
from overdrive.techniques.catalogue import catalogue
from tests.conftest import IMPORT_TORCH, Run

SLEEPY = """
import time, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.002)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), index % 2

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(EPOCHS):
    for x, y in DataLoader(Slow(), batch_size=8, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    open("log.txt", "a").write(f"{epoch} {loss.item()}\\n")
    torch.save(model.state_dict(), "model.pt")
print(f"final {loss.item():.9f}")
"""

Write = Callable[[str], Path]


def tuned(overdrive: Run, path: Path, *options: str, timeout: float = 240) -> tuple[Any, dict[str, Any]]:
    out = path.parent.parent / "result.json"
    done = overdrive("tune", "--json", str(out), *options, path.name, cwd=path.parent, timeout=timeout)
    return done, json.loads(out.read_text()) if out.exists() else {}


def test_finds_what_is_slow_proves_it_exact_and_runs_it(script: Write, overdrive: Run, warm_python: Run) -> None:
    path = script(SLEEPY.replace("EPOCHS", "1000"))
    names = "sample_cache,autocast,channels_last"
    wanted = "--contract", "exact", "--budget", "400s", "--techniques", names
    done, result = tuned(overdrive, path, *wanted, timeout=480)
    assert done.returncode == 0, done.stderr
    assert result["verdict"] == "FASTER", result["notes"]
    assert [each["name"] for each in result["techniques"]].index("sample_cache") == 0
    assert result["speedup"]["low"] > 1
    assert len({pair["process"] for pair in result["duels"][-1]["pairs"]}) >= 3
    assert {each["name"] for each in result["rejected"]} >= {"autocast", "channels_last"}
    assert "\x1b" not in done.stdout  # no terminal, no control codes
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "train.overdrive.html",
        "train.overdrive.toml",
        "train.py",
    ]
    proof = result["proof"]
    assert proof["level"] == "exact" and proof["exact"]["steps"] >= 100 and not proof["proxy"]
    assert proof["invariants"] and all(each["same"] for each in proof["invariants"])
    shown = overdrive("report", "train.overdrive.toml", cwd=path.parent)
    assert shown.returncode == 0 and "sample_cache" in shown.stdout and "identical" in shown.stdout

    path.write_text(SLEEPY.replace("EPOCHS", "3"))
    expected = warm_python("train.py", cwd=path.parent)
    got = overdrive("run", "train.py", cwd=path.parent)
    assert got.stdout == expected.stdout
    assert "sample_cache" in got.stderr and "left out" not in got.stderr


def test_a_budget_too_small_changes_nothing_and_says_so(script: Write, warm_overdrive: Run) -> None:
    path = script(SLEEPY.replace("EPOCHS", "1000"))
    done, result = tuned(warm_overdrive, path, "--budget", "1s")
    assert done.returncode == 0, done.stderr
    assert result["verdict"] == "INCONCLUSIVE" and result["techniques"] == []
    assert 'verdict = "INCONCLUSIVE"' in (path.parent / "train.overdrive.toml").read_text()


def test_a_program_that_was_mended_from_outside_is_tried_anew(script: Write, warm_overdrive: Run) -> None:
    path = script(SLEEPY.replace("EPOCHS", "1000").replace("model = ", "open('weights')\nmodel = ", 1))
    done, _ = tuned(warm_overdrive, path, "--budget", "1s")
    assert done.returncode == 1 and "FileNotFoundError" in done.stderr
    (path.parent / "weights").touch()
    done, _ = tuned(warm_overdrive, path, "--budget", "1s")
    assert done.returncode == 0, done.stderr
    assert "broken off" not in done.stdout


@pytest.mark.fault(1)
def test_a_program_that_fails_shows_its_own_message(script: Write, overdrive: Run) -> None:
    path = script(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    )
    done, _ = tuned(overdrive, path)
    assert done.returncode == 1
    assert "the following arguments are required: --data" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_without_training_is_refused_in_one_sentence(script: Write, overdrive: Run) -> None:
    done, _ = tuned(overdrive, script("print('hello')\n"))
    assert done.returncode == 1
    assert "no training step" in done.stderr


def test_a_program_that_changes_its_parameters_itself_is_told_so(script: Write, warm_overdrive: Run) -> None:
    text = f"""{IMPORT_TORCH}
weight = torch.zeros(3, requires_grad=True)
for step in range(5):
    (weight - 1).square().sum().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
        weight.grad = None
"""
    done, _ = tuned(warm_overdrive, script(text))
    assert done.returncode == 1 and "no optimizer makes a step" in done.stderr


@pytest.mark.fault(18)
def test_a_program_whose_loss_is_not_finite_is_refused(script: Write, warm_overdrive: Run) -> None:
    path = script(SLEEPY.replace("EPOCHS", "1000").replace("lr=0.05", "lr=1e20").replace("0.002", "0"))
    done, _ = tuned(warm_overdrive, path, "--budget", "150s")
    assert done.returncode == 1
    assert "not finite in step" in done.stderr


def tune_until(told: str, path: Path, *options: str) -> subprocess.Popen[str]:
    """A tune of this script that is under way, and has printed a line with this."""
    command = [sys.executable, "-m", "overdrive", "tune", *options, path.name]
    tune = subprocess.Popen(command, cwd=path.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert tune.stdout is not None
    for line in tune.stdout:
        if told in line:
            break
    return tune


def test_ctrl_c_stops_a_tune_in_one_sentence(script: Write, overdrive: Run) -> None:
    tune = tune_until("control", script(SLEEPY.replace("EPOCHS", "1000")))
    time.sleep(3)
    tune.send_signal(signal.SIGINT)
    _, errors = tune.communicate(timeout=120)
    assert tune.returncode == 130
    assert "the same command goes on from there" in errors and "Traceback" not in errors


@pytest.mark.fault(10)
def test_ctrl_c_leaves_the_plan_that_is_proved_by_then(script: Write, overdrive: Run) -> None:
    path = script(SLEEPY.replace("EPOCHS", "1000"))
    options = ("--contract", "exact", "--budget", "400s", "--techniques", "sample_cache")
    tune = tune_until("adopted", path, *options)
    time.sleep(1)
    started = psutil.Process(tune.pid).children(recursive=True)
    for _ in range(3):  # as people press it
        tune.send_signal(signal.SIGINT)
        time.sleep(0.2)
    said, errors = tune.communicate(timeout=60)
    assert tune.returncode == 130 and "the same command goes on from there" in errors and "Traceback" not in errors
    plan = Plan.read(path.parent / "train.overdrive.toml", catalogue())
    assert [each.name for each in plan.techniques] == ["sample_cache"] and plan.speedup and plan.speedup.low > 1
    assert "not confirmed" in plan.unconfirmed and "Run it:" in said
    assert (path.parent / "train.overdrive.html").exists()
    assert not psutil.wait_procs(started, timeout=20)[1]


@pytest.mark.fault(13)
def test_a_folder_that_cannot_be_written_is_named_before_anything_starts(script: Write, overdrive: Run) -> None:
    path = script("raise SystemExit('must not start')\n")
    done = overdrive("tune", "-o", "/proc/plan.toml", path.name, cwd=path.parent)
    assert done.returncode == 2
    assert "Cannot write" in done.stderr and "must not start" not in done.stderr


@pytest.mark.parametrize("budget", ["soon", "-5", "0", "", "1.2.3m", "."])
def test_a_budget_that_is_no_duration_is_refused(budget: str, script: Write, overdrive: Run) -> None:
    path = script("print('must not start')\n")
    done = overdrive("tune", "--budget", budget, path.name, cwd=path.parent)
    assert done.returncode == 2 and "must not start" not in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--techniques", "sample_cash", "is no technique"),
        ("--techniques", "sample_cache,batch_fetch", "'batch_fetch' is no technique any more: removed on"),
        ("--objective", "beauty", "none of time, throughput, memory"),
        ("--objective", "time-under-memory=much", "is not a size"),
        ("--objective", "time-under-memory=", "none of time, throughput, memory"),
    ],
)
def test_a_wish_that_means_nothing_is_refused(
    option: str, value: str, says: str, script: Write, overdrive: Run
) -> None:
    path = script("print('must not start')\n")
    done = overdrive("tune", option, value, path.name, cwd=path.parent)
    assert done.returncode == 2 and says in done.stderr and "must not start" not in done.stdout


@pytest.mark.fault(23)
def test_exact_is_refused_where_the_program_differs_from_itself(script: Write, warm_overdrive: Run) -> None:
    noise = "x = x + 1e-6 * (__import__('time').time_ns() % 1000)"  # what the system draws is the same in all trials
    text = SLEEPY.replace("        loss = ", f"        {noise}\n        loss = ", 1)
    text = text.replace("EPOCHS", "1000").replace("0.002", "0")
    path = script(text)
    done, _ = tuned(warm_overdrive, path, "--contract", "exact", "--budget", "60s")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = " ".join(done.stderr.split())
    assert "exact cannot be seen to hold" in told and "other inputs in step 1" in told and "rounding" in told
    assert not path.with_name("train.overdrive.toml").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "train.py"), "is the script itself"),
        (("-o", "plan.html"), "the report plan.html is already that of -o"),
        (("--json", "train.overdrive.toml"), "is already that of -o"),
        (("-o", "folder"), "is a folder"),
        (("-o", "nowhere/plan.toml"), "Cannot write into the folder nowhere"),
    ],
)
def test_nothing_is_written_over_the_script_or_over_each_other(
    options: tuple[str, ...], said: str, script: Write, overdrive: Run
) -> None:
    path = script("raise SystemExit('it was started')\n")
    (path.parent / "folder").mkdir()
    done = overdrive("tune", *options, path.name, cwd=path.parent)
    assert done.returncode == 2 and said in done.stderr and "it was started" not in done.stderr
    assert path.read_text().startswith("raise") and sorted(os.listdir(path.parent)) == ["folder", "train.py"]
