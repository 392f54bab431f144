"""Trials that are forked from a process which has PyTorch already do what fresh ones do, bit for bit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from overdrive.core.facts import Facts
from overdrive.core.program import Program
from overdrive.core.records import ExitReason, Trace, TrialOver
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.launchers.local import LocalLauncher
from overdrive.trials.launchers.warm import WarmLauncher
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial
from overdrive.trials.untimed import UntimedRunner

# Everything that a program may see of how it was started, and random numbers from before and after the import.
PROGRAM = """
import os, random, sys
seen = "torch" in sys.modules, "torch._dynamo" in sys.modules, sys.argv, __name__, os.getpgid(0) == os.getpid()
first = random.random()
import importlib.util
assert all(importlib.util.find_spec("torch") for _ in range(3))  # as transformers and others do
import numpy
import torch
import torch.nn.functional as F
assert seen == (False, False, [sys.argv[0], "--steps", "6"], "__main__", True), seen
assert torch.__spec__.name == "torch" and sys.modules["torch"] is torch and torch.nn.functional is F
open("written.txt", "w").write("by a trial")
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.tensor(numpy.random.randint(0, 2, 64)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
for x, y in list(loader)[: int(sys.argv[2])]:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x * random.random()), y)
    loss.backward()
    optimizer.step()
print("done")
"""
ENDS = """
import os, signal, sys
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    model(torch.randn(2, 2)).sum().backward()
    optimizer.step()
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else sys.exit(3)
"""
GOES_ON = ENDS.replace("step == 2", "False")


@pytest.fixture
def pool() -> Iterator[TrialPool]:
    with TrialPool() as pool:
        yield pool


def program(folder: Path, source: str, *arguments: str) -> TrialSpec:
    path = folder / "train.py"
    path.write_text(source)
    return TrialSpec(Program(str(path), arguments), digests="exact")


def warmed(pool: TrialPool) -> WarmLauncher:
    """One with which the next trial is forked."""
    pool.isolation = "overlay"
    launcher = pool.untimed_launcher(Facts())
    assert isinstance(launcher, WarmLauncher)
    launcher._worth = 0
    return launcher


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    assert holds()


def test_a_forked_trial_is_bit_for_bit_a_fresh_one_and_sees_nothing_of_it(
    tmp_path: Path, pool: TrialPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = program(tmp_path, PROGRAM, "--steps", "6")
    said: list[str] = []
    fresh = UntimedRunner(pool).run(spec, 100, said)
    launcher = warmed(pool)
    forked = [UntimedRunner(pool, lambda: launcher).run(spec, 100, said) for _ in range(2)]
    (nursery,) = launcher._nurseries.values()
    assert isinstance(fresh, Trace) and fresh.steps == 6, (fresh, said)
    assert forked == [fresh, fresh] and said == ["done\n"] * 3
    assert not (tmp_path / "written.txt").exists()
    soon(lambda: not psutil.Process(nursery._process.pid).children())


@pytest.mark.parametrize(("how", "kind"), [("killed", "oom"), ("leaves", "exception")])
def test_how_a_forked_trial_ends_is_told_as_of_a_fresh_one(
    how: str, kind: str, tmp_path: Path, pool: TrialPool
) -> None:
    spec = program(tmp_path, ENDS, how)
    for launcher in (LocalLauncher(), warmed(pool)):
        over = UntimedRunner(pool, lambda its=launcher: its).run(spec, 100)  # type: ignore[misc]
        assert isinstance(over, ExitReason) and over.kind == kind


def test_a_forked_trial_stands_still_goes_on_and_is_stopped(tmp_path: Path, pool: TrialPool) -> None:
    spec = program(tmp_path, GOES_ON, "")
    trial = Trial(pool, spec, warmed(pool))
    trial.first_step()
    (pid,) = trial.group.pids
    soon(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    assert trial.run(3).step == 4
    trial.stop()
    soon(lambda: not psutil.pid_exists(pid))


def test_a_nursery_that_is_gone_costs_nothing_but_time(tmp_path: Path, pool: TrialPool) -> None:
    spec = program(tmp_path, GOES_ON, "")
    launcher = warmed(pool)
    trial = Trial(pool, spec, launcher)
    trial.stop()
    for nursery in launcher._nurseries.values():
        nursery._process.kill()
    again = Trial(pool, spec, launcher)
    assert again.first_step().step == 1
    again.stop()


@pytest.mark.fault(2)
def test_a_trial_whose_nursery_dies_is_told_as_killed(tmp_path: Path, pool: TrialPool) -> None:
    spec = program(tmp_path, GOES_ON, "")
    launcher = warmed(pool)
    trial = Trial(pool, spec, launcher)
    trial.first_step()
    for nursery in launcher._nurseries.values():
        nursery._process.kill()
    os.kill(trial.group.pids[0], signal.SIGKILL)
    with pytest.raises(TrialOver):
        trial.run(3)
    trial.stop()


@pytest.mark.fault(8)
def test_nothing_is_left_when_the_pool_is_closed(tmp_path: Path) -> None:
    with TrialPool() as pool:
        launcher = warmed(pool)
        UntimedRunner(pool, lambda: launcher).run(program(tmp_path, ENDS, "leaves"), 100)
        nurseries = [each._process.pid for each in launcher._nurseries.values()]
        assert len(nurseries) == 1
    soon(lambda: not any(map(psutil.pid_exists, nurseries)))


@pytest.mark.parametrize("facts", [{"framework": "keras"}, {"sets_environment": True}])
def test_what_would_see_a_difference_is_started_afresh(facts: dict[str, object], pool: TrialPool) -> None:
    pool.isolation = "overlay"
    assert pool.untimed_launcher(Facts(**facts)) is pool.launcher  # type: ignore[arg-type]
    pool.isolation = "redirect"
    assert pool.untimed_launcher(Facts()) is pool.launcher


def test_a_program_that_sets_variables_before_the_import_is_known_by_them(tmp_path: Path, pool: TrialPool) -> None:
    for first, sets in (("import os", False), ("import os; os.environ['OF_THE_TEST'] = '1'", True)):
        trial = Trial(pool, TrialSpec(program(tmp_path, first + GOES_ON, "").program))
        trial.first_step()
        assert trial.facts().sets_environment is sets
        trial.stop()


def test_the_third_start_with_an_environment_is_forked(pool: TrialPool) -> None:
    launcher = WarmLauncher(LocalLauncher())
    environments = [dict(os.environ), {**os.environ, "OF_THE_TEST": "1"}]
    found = [launcher._nursery_for(each) is not None for each in environments * 3]
    launcher.close()
    assert found == [False] * 4 + [True] * 2


def test_a_run_without_digests_says_nothing_of_how_long_those_with_digests_take(
    tmp_path: Path, pool: TrialPool
) -> None:
    runner = UntimedRunner(pool)
    runner.digests_seconds = 0.0
    spec = program(tmp_path, PROGRAM, "--steps", "6")
    runner.run(replace(spec, digests=""), 100)
    assert runner.digests_seconds == 0
    runner.run(spec, 100)
    assert runner.digests_seconds > 0


def test_how_a_trial_is_started_is_asked_when_it_starts(tmp_path: Path, pool: TrialPool) -> None:
    """Of a tune that goes on no trial has told yet what may be forked, when its proofs are made ready."""
    warm = warmed(pool)
    runner = UntimedRunner(pool, lambda: warm if pool.isolation else pool.launcher)
    pool.isolation = ""
    spec = program(tmp_path, PROGRAM, "--steps", "6")
    runner.run(spec, 100)
    assert pool.isolation and not warm._nurseries
    runner.run(spec, 100)
    assert warm._nurseries
