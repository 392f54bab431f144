"""A trial is a group of processes, whoever starts them: another launcher is a few lines, and all of a group obey."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from overdrive.core.program import Program
from overdrive.core.records import TrialOver
from overdrive.core.settings import Chosen
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.launchers.launcher import Launcher
from overdrive.trials.launchers.local import LocalLauncher
from overdrive.trials.launchers.ranks import RanksGroup
from overdrive.trials.pool import TrialPool
from overdrive.trials.trial import Trial

TRAIN = """
import os
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    if step == 20 and os.environ.get("WHICH") == "1":
        raise ValueError("bad rank")
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""
NICE = LocalLauncher(prefix=("nice", "-n", "7"))  # all that another launcher takes


class PairLauncher:
    """Two workers of this machine that run the same program, each for itself."""

    def start(self, environment: Mapping[str, str], output: BinaryIO) -> RanksGroup:
        return RanksGroup([LocalLauncher().start({**environment, "WHICH": str(rank)}, output) for rank in range(2)])


Make = Callable[..., Trial]


@pytest.fixture
def trial(script: Callable[[str], Path]) -> Iterator[Make]:
    made: list[Trial] = []

    def make(launcher: Launcher, *techniques: Chosen) -> Trial:
        made.append(Trial(TrialPool(launcher=launcher), TrialSpec(Program(str(script(TRAIN))), techniques)))
        return made[-1]

    yield make
    for each in made:
        each.stop()
        with each.pool:
            pass


def become(processes: Sequence[psutil.Process], stopped: bool) -> bool:
    """Whether all stand still, or none; a signal takes a moment to arrive."""
    for _ in range(50):
        if all((each.status() == psutil.STATUS_STOPPED) is stopped for each in processes):
            return True
        time.sleep(0.1)
    return False


def test_trials_run_under_nice(trial: Make) -> None:
    one = trial(NICE)
    assert one.first_step().step == 1 and one.run(5).step == 6
    assert os.getpriority(os.PRIO_PROCESS, one.group.pids[0]) == os.getpriority(os.PRIO_PROCESS, 0) + 7


def test_each_rank_of_a_trial_is_started_by_the_pools_launcher(trial: Make) -> None:
    one = trial(NICE, ("data_parallel", {"ranks": 2}))
    one.first_step()
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in one.group.pids] == [usual + 7, usual + 7]


def test_a_group_of_two_steps_stands_still_and_ends_as_one(trial: Make) -> None:
    one = trial(PairLauncher())
    one.first_step()
    processes = [psutil.Process(pid) for pid in one.group.pids]
    assert len(processes) == 2 and become(processes, stopped=True)
    assert one.run(5).step == 6
    assert become(processes, stopped=True)
    one.group.resume()
    assert become(processes, stopped=False)
    one.stop()
    assert not any(psutil.pid_exists(each.pid) for each in processes)


def test_where_one_of_a_group_fails_the_trial_is_over(trial: Make) -> None:
    one = trial(PairLauncher())
    one.first_step()
    with pytest.raises(TrialOver) as over:
        one.run(25)
    assert over.value.exit_reason.detail == "ValueError: bad rank"
