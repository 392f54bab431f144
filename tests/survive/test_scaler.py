"""Losses that are scaled for float16, by the usual loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.survive.killed import files_of, survive
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
    whole = survive(tmp_path, "whole", SCALED)
    assert whole.returncode == 0, whole.stderr
    first = survive(tmp_path, "killed", SCALED, dies=17)
    second = survive(tmp_path, "killed", SCALED)
    assert second.returncode == 0 and "gone on after step" in second.stderr, first.stderr + second.stderr
    assert "from its start" not in second.stderr
    assert first.stdout + second.stdout == whole.stdout
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
