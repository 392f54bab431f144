"""`tune`, `run` and `verify` on a program that trains nothing, in real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Run

Write = Callable[[str], Path]
# Its work is waiting, which no technique shortens: the tune is to see its calls, and to find nothing.
ANSWERS = """
import sys, time
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
total = 0.0
for request in range(int(sys.argv[1])):
    time.sleep(0.002)
    total += model(torch.randn(4, 8)).softmax(-1)[:, 0].sum().item()
print(f"{total:.6f}")
"""
PLAN = """
overdrive = 1
program = "train.py"
contract = "exact"
inference = true
[[technique]]
name = "no_grad"
"""


def test_a_tune_counts_its_calls(script: Write, warm_overdrive: Run) -> None:
    path = script(ANSWERS)
    result = path.parent / "result.json"
    options = ("--budget", "20s", "--json", result.name, "--techniques", "no_grad")
    done = warm_overdrive("tune", *options, path.name, "1500", cwd=path.parent)
    assert done.returncode == 0, done.stderr
    assert "an inference program: its steps are the calls of its model" in " ".join(done.stdout.split())
    assert "a call" in done.stdout and "a step" not in done.stdout
    found = json.loads(result.read_text())
    assert found["inference"] and found["baseline"]["seconds_per_step"] > 0.002
    assert found["baseline"]["samples_per_s"] > 100
    [sizes] = found["call_sizes"]
    assert sizes["given"] == "4 × 8" and sizes["calls"] > 30 and "Each call is given 4 × 8." in done.stdout
    half, most = found["baseline"]["half"], found["baseline"]["most"]
    assert 0 < half["low"] <= half["estimate"] < found["baseline"]["seconds_per_step"], "what it waits for is no call"
    assert half["estimate"] <= most["estimate"] and "99 of 100 take at most (p99)" in " ".join(done.stdout.split())
    assert "inference = true" in (path.parent / "train.overdrive.toml").read_text()


def test_a_run_under_its_plan_prints_the_same_and_counts_calls(script: Write, warm_run: Run, warm_python: Run) -> None:
    path = script(ANSWERS)
    (path.parent / "plan.toml").write_text(PLAN)
    plain = warm_python(path.name, "30", cwd=path.parent)
    done = warm_run("--plan", "plan.toml", "--record", "record.json", path.name, "30", cwd=path.parent)
    assert done.stdout == plain.stdout and done.returncode == 0
    assert "overdrive: 30 calls, " in done.stderr and "plan.toml (no_grad)" in done.stderr and "p50 " in done.stderr
    record = json.loads((path.parent / "record.json").read_text())
    assert record["steps"] == 30 and record["samples"] == 120 and record["left_out"] == {}
    assert record["most"] is None, "30 calls tell nothing of the slowest of a hundred"
    assert record["call_sizes"] == [{"given": "4 × 8", "calls": 30}] and "calls were given" not in done.stderr


def test_a_run_says_what_its_calls_were_given(script: Write, warm_run: Run) -> None:
    path = script(ANSWERS.replace("torch.randn(4, 8)", "torch.randn(1 + request % 4 // 3, 8)"))
    (path.parent / "plan.toml").write_text(PLAN)
    done = warm_run("--plan", "plan.toml", path.name, "30", cwd=path.parent)
    assert "overdrive: calls were given 1 × 8 (23) and 2 × 8 (7)" in done.stderr


def test_its_plan_is_verified_by_its_answers(script: Write, warm_overdrive: Run) -> None:
    path = script(ANSWERS)
    (path.parent / "plan.toml").write_text(PLAN)
    done = warm_overdrive("verify", "plan.toml", path.name, "40", cwd=path.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "The plan keeps the level exact" in said and "40 calls identical bit for bit: outputs" in said


def test_a_word_that_is_no_truth_value_is_refused(script: Write, overdrive: Run) -> None:
    path = script(ANSWERS)
    (path.parent / "plan.toml").write_text(PLAN.replace("true", '"yes"'))
    done = overdrive("run", "--plan", "plan.toml", path.name, "3", cwd=path.parent)
    assert done.returncode == 2 and "inference must be true or false" in done.stderr
    assert "Traceback" not in done.stderr
