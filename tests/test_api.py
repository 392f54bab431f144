"""The commands from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import overdrive
from overdrive.core.tune_result import TuneResult
from overdrive.trials import pool
from tests.warm_trials import warm_trials

TRAINS = """
import sys
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


def test_a_tune_gives_its_result_and_leaves_its_plan(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    result = overdrive.tune(script, ["100000", "0"], contract="exact", budget=1.0, techniques=["threads"])
    assert isinstance(result, TuneResult) and result.contract == "exact" and result.program.endswith("100000 0")
    assert result.verdict == "INCONCLUSIVE" and script.with_name("train.overdrive.toml").exists()


def test_what_cannot_be_tuned_is_said_by_an_error(script: Path) -> None:
    with pytest.raises(overdrive.CannotTune, match="There is no script"):
        overdrive.tune(script.with_name("none.py"))
    with pytest.raises(overdrive.CannotTune, match="contract"):
        overdrive.tune(script, contract="loose")
    assert [each.name for each in script.parent.iterdir() if each.suffix != ""] == ["train.py"]


def test_a_run_gives_the_programs_exit_code(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert overdrive.run(script, ["3", "7"]) == 7
    assert "3 steps" in capfd.readouterr().err
    script.with_name("plan.toml").write_text("overdrive = 2\n")
    assert overdrive.run(script, ["3", "0"], plan=script.with_name("plan.toml")) == 2
