"""Losses that are scaled for float16, by the usual loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.survive.killed import told_of_going_on
from tests.survive.test_survive import TRAIN

pytest.importorskip("torch")

SCALED = (
    TRAIN.replace("schedule =", 'scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)\nschedule =')
    .replace("loss.backward()", "scaler.scale(loss).backward(); scaler.unscale_(optimizer)")
    .replace("optimizer.step();", "scaler.step(optimizer); scaler.update();")
    .replace("print(step,", "print(scaler.get_scale(), step,")
)


@pytest.mark.survive
@pytest.mark.fault("killed")
def test_a_run_whose_losses_are_scaled_goes_on(tmp_path: Path) -> None:
    """A scaler keeps the state of an optimizer by its address while this makes its step, after which a snapshot is."""
    _, told = told_of_going_on(tmp_path, SCALED)
    assert "from its start" not in told
