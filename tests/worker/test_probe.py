"""What the probe takes for a program's samples, where no loader tells."""

from __future__ import annotations

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
