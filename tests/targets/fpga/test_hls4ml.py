"""A design by hls4ml, where that is installed; `make test-engines` brings it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overdrive.targets.fpga import rtl
from tests.conftest import Run
from tests.targets.fpga.designs import design_of, widths

TRAIN = """
import torch
from torch import nn
torch.manual_seed(0)
centres = 1.5 * torch.randn(3, 6)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(6, 12), ACT(), nn.Linear(12, 3)
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(100):
    labels = torch.randint(3, (64,))
    loss = nn.functional.cross_entropy(model(centres[labels] + 0.5 * torch.randn(64, 6)), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
for _ in range(8):
    model(centres[torch.randint(3, (250,))] + 0.5 * torch.randn(250, 6))
"""


@pytest.fixture(autouse=True)
def installed() -> None:
    pytest.importorskip("hls4ml")


def test_the_emulation_gives_the_same_classes(tmp_path: Path, warm_overdrive: Run) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("ACT", "nn.ReLU"))
    told = design_of(tmp_path, warm_overdrive)
    assert told["inputs"] == 2000 and told["tested"] == 1000 and told["bound"] <= told["margin"]
    assert max(widths(told)) < 18  # narrower than what it began with
    made = tmp_path / "train.export-fpga"
    assert (made / "project" / "firmware").is_dir()
    assert [each["rows"] for each in told["own"]] == [1, 250] and all(each["p50"] for each in told["own"])
    page = (made / "README.md").read_text()
    if lacking := rtl.missing():
        assert told["cycles"] is None and told["left_out"] == lacking and lacking in page
        assert not (made / "rtl").exists()
    else:
        cycles = told["cycles"]
        assert cycles["inputs"] == told["inputs"] and cycles["latency"] > 0 and cycles["interval"] == 1
        assert (made / "rtl" / "src" / "model.v").is_file() and f"{cycles['latency']} clock cycles" in page


def test_what_has_no_form_in_verilog_leaves_the_project_for_hls(tmp_path: Path, warm_overdrive: Run) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("ACT", "nn.Sigmoid"))
    done = warm_overdrive("export", "--to", "fpga", "--json", "told.json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["cycles"] is None and told["left_out"] == (rtl.missing() or "its layer act (sigmoid) has no form in it")
    assert f"verilog left out: {told['left_out']}" in done.stdout
    assert not (tmp_path / "train.export-fpga" / "rtl").exists()


def test_the_same_inputs_again_are_no_more_evidence(tmp_path: Path, warm_overdrive: Run) -> None:
    once = TRAIN.replace("for _ in range(8):\n    model(", "rows = (").replace("ACT", "nn.ReLU")
    (tmp_path / "train.py").write_text(once + "for _ in range(8):\n    model(rows)\n")
    done = warm_overdrive("export", "--to", "fpga", "train.py", cwd=tmp_path)
    assert done.returncode == 1 and "takes 299 of them" in done.stderr.splitlines()[-1]


def test_a_layer_that_the_front_end_does_not_take_is_named(tmp_path: Path, warm_overdrive: Run) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("ACT", "nn.Hardswish"))
    done = warm_overdrive("export", "--to", "fpga", "train.py", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "its layer act" in last and "Hardswish" in last
    assert set(os.listdir(tmp_path)) - {"cache", "state"} == {"train.py"}
