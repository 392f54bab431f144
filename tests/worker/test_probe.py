"""What the probe takes for a program's samples, where no loader tells."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from overdrive.worker.torch.probe import Probe


def samples(*called: tuple[torch.nn.Module, Any]) -> float:
    probe = Probe(hashed_steps=3)
    for module, given in called:
        probe._called(module, module, *given)
    recorder: Any = SimpleNamespace(samples=0, clock=SimpleNamespace(steps=3), optimizers=[])
    return probe.facts(recorder).samples_per_step


@pytest.mark.parametrize(("with_model", "seen"), [(True, 4), (False, 12)])
def test_a_model_s_batch_counts_and_a_loss_s_rows_only_where_there_is_no_model(with_model: bool, seen: int) -> None:
    sequence, loss = torch.nn.LSTM(5, 7, batch_first=True), torch.nn.CrossEntropyLoss()
    rows = (loss, (torch.zeros(4 * 3, 7), torch.zeros(4 * 3, dtype=torch.long)))
    model = (sequence, (torch.zeros(4, 3, 5),))
    assert samples(*((model, rows) if with_model else (rows,))) == seen


_WITHOUT = """
import io, sys

class Hide:
    def find_spec(self, name, *rest):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hide())

from overdrive.core.messages import Job
from overdrive.core.program import Program
from overdrive.core.trial_spec import TrialSpec
from overdrive.worker.worker import Worker

worker = Worker(io.BytesIO(), io.BytesIO(), Job(TrialSpec(Program("train.py")), False, "", (), ""))
print(worker.instruments.probe.batch_hashes, "torch" in sys.modules)
"""


@pytest.mark.parametrize("hidden", [("torch",), ("torch", "keras", "tensorflow")])
def test_a_trial_needs_no_framework_that_is_not_installed(hidden: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT, *hidden], capture_output=True, text=True)
    assert done.stdout == "[] False\n", done.stderr
