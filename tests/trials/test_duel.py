"""Duels: what is not worth measuring is not measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.trials.pool import TrialPool
from overdrive.trials.run_duel import run_duel
from overdrive.tuner.duel_runner import CANDIDATE

DRAWS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.randn(4)

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(50):
    for x in DataLoader(Noisy(), batch_size=8):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_technique_that_left_itself_out_is_not_measured(script: Callable[[str], Path]) -> None:
    program = Program(str(script(DRAWS)))
    with TrialPool() as pool:
        plain, cached = TrialSpec(program), TrialSpec(program, (("sample_cache", {}),))
        duel = run_duel(pool, plain, cached, CANDIDATE, time.monotonic() + 100)
    assert duel.pairs == [] and duel.exit_reason is None
    assert duel.new_trace is not None
    assert "draws random numbers" in duel.new_trace.left_out["sample_cache"]
