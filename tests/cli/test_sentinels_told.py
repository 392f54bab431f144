"""What `overdrive run` says of steps that it made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.cli.whole_run import steps_made_again
from overdrive.core.contract import Contract
from overdrive.kernels.build import compiler
from overdrive.worker.sentinels.sentinels import Sentinels
from tests.conftest import Run

pytest.importorskip("torch")
Write = Callable[[str], Path]

TRAIN = """
import sys, time
import torch

if "overdrive" in sys.modules:
    from overdrive.datacache import audit_budget
    from overdrive.kernels.max_pool.operator import MaxPool
    audit_budget.SHARE = 10.0  # more time than a run of some seconds gives
    plain = MaxPool.__call__

    def wrong_late(self, x):
        return plain(self, x) * (1.001 if step > int(sys.argv[1]) else 1)

    MaxPool.__call__ = wrong_late

step = 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(18, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(60):
    loss = (model(torch.ones(4, 1, 8, 8)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
    time.sleep(float(sys.argv[2]))  # a step made again has the lowest priority
"""
PLAN = 'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "fast_max_pool"\n'


def test_a_run_says_how_many_steps_it_made_again(script: Write, warm_python: Run, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    plain = warm_python("train.py", "1000", "0", cwd=path.parent)
    done = warm_run("train.py", "1000", "0.05", cwd=path.parent)
    assert done.stdout == plain.stdout and done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("overdrive: ") and last.endswith(" made again without fast_max_pool, all the same"), (
        done.stderr
    )


@pytest.mark.skipif(not compiler(), reason="needs a C compiler")
def test_a_technique_that_turns_wrong_is_left_out_in_one_line_and_the_run_goes_on(script: Write, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    done = warm_run("train.py", "20", "0.1", cwd=path.parent)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 60
    told = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(told) == 1 and told[0].startswith("overdrive: left out fast_max_pool: step "), done.stderr
    assert "made again without it, came to another result (the loss)" in told[0]
    assert done.stderr.splitlines()[-1].endswith(" made again without fast_max_pool, 1 not the same"), done.stderr


def test_without_a_plan_nothing_is_made_again(script: Write, warm_run: Run) -> None:
    path = script(TRAIN)
    done = warm_run("train.py", "1000", "0.02", cwd=path.parent)
    assert "made again" not in done.stderr


@pytest.mark.parametrize(
    "levels, expected",
    [
        ({"a": Contract.EXACT}, "2 steps made again without a, all the same"),
        (
            {"a": Contract.EXACT, "b": Contract.ROUNDING},
            "2 steps made again without a and b, all the same but for rounding",
        ),
        (dict.fromkeys("abc", Contract.EXACT), "2 steps made again without a, b and c, all the same"),
        ({"b": Contract.STATISTICAL}, "2 steps made again without b, on average the same"),
    ],
)
def test_the_line_says_what_was_compared(levels: dict[str, Contract], expected: str) -> None:
    sentinels = Sentinels(lambda: 0, levels)
    sentinels.same, sentinels.looked_at = 2, levels
    assert steps_made_again(sentinels) == expected
