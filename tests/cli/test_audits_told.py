"""What `overdrive run` says of samples that it made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from overdrive.cli.whole_run import made_again
from overdrive.datacache.audit import Audits
from tests.conftest import Run

pytest.importorskip("torch")
Write = Callable[[str], Path]

TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

if "overdrive" in sys.modules:  # more time for audits than a run of one second gives
    from overdrive.datacache import audit_budget, unchanged
    audit_budget.SHARE = 10.0
    unchanged.Unchanged.changed = lambda self: None

class Data(Dataset):
    def __init__(self):
        self.state = {"level": 0.0}

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index)) + self.state["level"], float(index)

torch.manual_seed(0)
data = Data()
loader = DataLoader(data, 8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        loss = ((model(x)[:, 0] - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
        time.sleep(0.01)  # an auditor has the lowest priority
    data.state["level"] = float(sys.argv[2])
"""
PLAN = 'overdrive = 1\nprogram = "train.py"\ncontract = "exact"\n[[technique]]\nname = "sample_cache"\n'


def test_a_run_says_how_many_samples_it_made_again(script: Write, warm_python: Run, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    plain = warm_python("train.py", "20", "0", cwd=path.parent)
    done = warm_run("train.py", "20", "0", cwd=path.parent)
    assert done.stdout == plain.stdout and done.returncode == 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("overdrive: ") and last.endswith(" made again, all the same"), done.stderr


def test_a_difference_is_said_once_in_one_line(script: Write, warm_run: Run) -> None:
    path = script(TRAIN)
    (path.parent / "train.overdrive.toml").write_text(PLAN)
    done = warm_run("train.py", "20", "5", cwd=path.parent)
    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(told) == 1 and told[0].startswith("overdrive: left out sample_cache: made again after step ")
    assert "may have been affected" in told[0]
    assert done.stderr.splitlines()[-1].endswith(" made again, 1 not the same"), done.stderr


def test_the_line_counts_samples() -> None:
    audits = Audits(lambda: 0)
    audits.same = 1
    assert made_again(audits) == "1 sample made again, all the same"
    audits.same = 2310
    assert made_again(audits) == "2,310 samples made again, all the same"
    audits.different = 1
    assert made_again(audits) == "2,311 samples made again, 1 not the same"
