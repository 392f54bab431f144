"""Real searches that are asked for more than values by name: all of a model, another sampler, a metric against its
cost. The programs train something small; where a test is about who proposes, they only print."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import IMPORT_TORCH, Run

pytest.importorskip("optuna")

# What it tells is how many hidden units its blocks have, and some chance: that more of them are there is to be seen.
UNITS = f"""{IMPORT_TORCH}
from torch import nn
torch.manual_seed(0)
x = torch.randn(16, 1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 4), nn.Linear(4, 6)
    def forward(self, x):
        return x + self.down(self.up(x).tanh())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(1, 6), nn.Sequential(Block(), Block()), nn.Linear(6, 1)
    def forward(self, x):
        return self.last(self.blocks(self.first(x)))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(6):
    loss = model(x).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
units = sum(each.up.out_features for each in model.blocks)
print("Accuracy: %.3f" % (units + 0.1 * torch.rand(1).item()))
"""
# A plane, which two hidden units know as well as 16.
PLANE = f"""
hidden = 16
{IMPORT_TORCH}
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True) + 0.3 * torch.randn(64, 1)
model = nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(150):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("Accuracy: %.1f" % (100 - 100 * nn.functional.mse_loss(model(x), y).item() / y.var().item()))
"""
# Best where lr is 1 and width 6; runs that wait are few, on a busy machine too.
HILL = """
import time
lr = 0.3
width = 3
time.sleep(0.5)
print("Accuracy: %.5f" % (90 - 3 * (lr - 1) ** 2 - 0.05 * (width - 6) ** 2))
"""


def search(overdrive: Run, path: Path, *words: str, budget: str) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """What came, and the process."""
    told = ("--metric", "Accuracy", "--budget", budget, "--json", "result.json")
    done = overdrive("search", *told, *words, path.name, cwd=path.parent, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((path.parent / "result.json").read_text()), done


def test_all_of_a_model_is_varied_beside_what_is_named(script: Callable[[str], Path], warm_overdrive: Run) -> None:
    path = script(UNITS)
    result, done = search(warm_overdrive, path, "--vary-model", "--vary", "lr=0.02,0.03", budget="300s")
    assert {each["name"] for each in result["parameters"]} == {"lr", "depth", "width"}
    tried = {name: {run["values"][name] for run in result["trials"]} for name in ("lr", "depth", "width")}
    assert all(len(values) > 1 for values in tried.values()), tried
    assert result["verdict"] == "better" and result["chosen"]["width"] == 8, done.stdout
    # What is to be written, by the module's name, and the modules as a diff.
    assert any("hidden size of Net.blocks.0.up" in edit for edit in result["edits"]), result["edits"]
    assert not [edit for edit in result["edits"] if re.search(r"\b(\d+) instead of \1\b", edit)], result["edits"]
    assert any(line.startswith("+") and f"out_features={result['chosen']['width']}" in line for line in result["tree"])
    assert path.read_text() == UNITS


def test_a_model_that_costs_less_and_is_as_good_is_chosen(script: Callable[[str], Path], warm_overdrive: Run) -> None:
    path = script(PLANE)
    words = ("--vary", "width=2,4,8,16", "--against", "parameters")
    result, done = search(warm_overdrive, path, *words, budget="240s")
    assert result["against"] == "parameters" and result["defaults"]["cost"] == 4 * 16 + 16 + 16 + 1
    assert result["verdict"] == "cheaper" and result["chosen"]["width"] < 16, done.stdout
    cost = result["comparison"]["cost"]
    assert cost["low"] == cost["estimate"] == cost["high"] == (6 * result["chosen"]["width"] + 1) / 97
    assert "Fewer parameters than with your defaults" in done.stdout


@pytest.mark.long
def test_gaussian_processes_propose_what_is_near_the_best(script: Callable[[str], Path], warm_overdrive: Run) -> None:
    """They know a smooth hill after some runs; TPE would still look all over it."""
    words = ("--sampler", "gp", "--vary", "lr=0..4")
    result, done = search(warm_overdrive, script(HILL), *words, budget="40s")
    last = [abs(run["values"]["lr"] - 1) for run in result["trials"]][-3:]
    assert len(result["trials"]) > 6 and statistics.median(last) < 0.05, done.stdout
    assert result["verdict"] == "not established"  # its seeds change nothing


@pytest.mark.long
def test_cma_es_proposes(script: Callable[[str], Path], warm_overdrive: Run) -> None:
    pytest.importorskip("cmaes")
    path = script(HILL)
    words = ("--sampler", "cma-es", "--vary", "lr=0..4", "--vary", "width=1..9", "--study", "study")
    result, done = search(warm_overdrive, path, *words, budget="40s")
    assert result["chosen"] and abs(result["chosen"]["lr"] - 1) < 0.7, done.stdout
    (journal,) = (path.parent / "study").glob("*.journal")
    assert '"cma:' in journal.read_text()  # what it keeps of itself with a run
