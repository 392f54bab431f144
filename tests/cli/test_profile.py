"""`overdrive profile` from end to end, on a program with one of everything that an edit could fix."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from overdrive.cli import profile as profile_command
from overdrive.core.json_data import from_json, to_json
from overdrive.core.program import Program
from overdrive.insight.profile import measure
from overdrive.insight.profile.measure import CannotProfile
from overdrive.insight.profile.page import page
from overdrive.insight.profile.record import Profile
from overdrive.machine.limits import Limits, LimitsUnavailable, Measure
from overdrive.report.reading import read
from overdrive.trials import pool
from tests.conftest import Run
from tests.schemas import held
from tests.warm_trials import warm_trials

SCRIPT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Points(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((3, 8, 8), float(index)).mul(0.01).add(1).sub(1).abs(), index % 10  # ITEM


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(288, 1000)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).flatten(1))  # BIAS


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)  # counts its steps in tensors, and reads them
weights = np.ones(1000)
for epoch in range(3):
    net.train()
    for x, y in DataLoader(Points(), batch_size=8, shuffle=True):
        out = net(x) * torch.from_numpy(weights)  # DOUBLE
        optimizer.zero_grad()  # LATE
        loss = nn.functional.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        loss.item()  # READ
    net.eval()
    net(torch.zeros(64, 3, 8, 8))  # EVALUATED
"""


def line_of(sign: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {sign}"))


def limits(*args: Any, **kwargs: Any) -> Limits:
    values = {"cpu.matmul.fp32": 5e10, "cpu.matmul.fp64": 2e10, "cpu.memory.copy": 1e10}
    measures = {name: Measure(value, "", "") for name, value in values.items()}
    return Limits(measures, {}, "", 1, "", 0.0, time.time(), 0.0, True)


def profiled(
    monkeypatch: pytest.MonkeyPatch, script: Path, text: str, advise: bool = False
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The profile, its page, and its trace; they lie beside the script."""
    script.write_text(text)
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(profile_command, "measured_limits", limits)
    page, trace, result = (script.parent / name for name in ("p.html", "t.json", "p.json"))
    assert profile_command.profile(Program.parse([script.name]), page, trace, result, advise=advise) == 0
    return json.loads(result.read_text()), page.read_text(), json.loads(trace.read_text())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    for most in ("_FEWEST_PROCESSES", "_MOST_PROCESSES"):  # the script is short: its pace is no concern here
        monkeypatch.setattr(measure, most, 2)
    return monkeypatch


def test_a_profile_of_a_program_with_everything(
    tmp_path: Path, quick: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, html, trace = profiled(quick, tmp_path / "train.py", SCRIPT, advise=True)
    held("profile", result)
    assert to_json(from_json(Profile, result)) == result

    phases = result["phases"]
    assert sum(result["parts"].values()) == pytest.approx(sum(phases.values()))
    assert all(phases[phase] > 0 for phase in ("data", "forward", "backward", "optimizer", "between"))
    assert not result["left_out"]
    names = {(each["operator"], each["phase"]) for each in result["operators"]}
    assert {("aten::convolution", "forward"), ("aten::convolution_backward", "backward")} <= names
    convolution = next(each for each in result["operators"] if each["operator"] == "aten::convolution")
    # In some of the recorded steps, not in the counted one, a model is called once more.
    assert convolution["flops"] == pytest.approx(2 * 8 * 8 * 6 * 6 * 3 * 3 * 3, rel=0.3) and convolution["of_roof"] > 0
    backward = next(each for each in result["operators"] if each["operator"] == "aten::convolution_backward")
    assert backward["flops"] > 0  # of the module whose gradient it is
    modules = {each["module"]: each for each in result["modules"]}
    assert modules["Net.conv"]["forward"] > 0 and modules["Net.conv"]["backward"] > 0
    peak = result["memory"]["peak"]
    trained = (3 * 8 * 9 + 8) + 16 + (288 * 1000 + 1000)
    assert abs(peak["parameters"] - 4 * trained) < 500 and peak["gradients"] >= 4 * trained
    assert result["bottleneck"]["sentence"] in " ".join(capsys.readouterr().out.split())

    # Neither the optimizer's counters nor the order that the sampler draws.
    assert {(each["line"], each["call"]) for each in result["reads"]} == {(line_of("READ"), "item")}

    seen = {(each["kind"], each["line"]) for each in result["advice"]}
    assert [each["line"] for each in result["advice"] if each["kind"] == "works on single items"] == [line_of("ITEM")]
    assert seen >= {
        ("64-bit numbers", line_of("DOUBLE")),
        ("bias before a batch norm", line_of("BIAS")),
        ("evaluates with gradients on", line_of("EVALUATED")),
        ("zeroes gradients late", line_of("LATE")),
        ("works on single items", line_of("ITEM")),
    }
    assert any(event.get("name") == "aten::convolution" for event in trace["traceEvents"])
    assert "default-src 'none'" in html and "<script" not in html and "http" not in html.replace("http-equiv", "")
    assert html.count("<svg") >= 6  # parts, flame graph, roofline, memory: for a desk, and for a phone
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "p.html",
        "p.json",
        "t.json",
        "train.py",
    ]
    assert (tmp_path / "train.py").read_text() == SCRIPT

    hostile = json.loads(json.dumps(result).replace("aten::convolution", "<script>x</script>"))
    assert "<script" not in page(read(Profile, hostile))
    broken = {"flame": 3, "roof": {"flops": "x"}, "operators": [None], "memory": {"curve": [1]}}
    assert page(Profile()) and page(read(Profile, broken))


ANSWERS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).eval()
for request in range(120):
    with torch.no_grad():
        scores = model(torch.randn(4, 3, 16, 16))
    scores.argmax(1).tolist()  # READ
"""


def test_of_a_program_that_only_calls_its_model_a_call_is_taken_apart(
    tmp_path: Path, quick: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, html, _ = profiled(quick, tmp_path / "infer.py", ANSWERS, advise=True)
    held("profile", result)
    assert result["inference"] and not result["left_out"]
    assert result["phases"]["forward"] > 0, "without gradients, too: to evaluate is what it does"
    assert not any(result["phases"].get(phase) for phase in ("evaluation", "backward", "optimizer"))
    assert ("aten::convolution", "forward") in {(each["operator"], each["phase"]) for each in result["operators"]}
    assert abs(result["memory"]["peak"]["parameters"] - 4 * (8 * 27 + 8 + 32 + 15680 + 10)) < 500
    assert not result["memory"]["peak"].get("gradients")
    said = " ".join(capsys.readouterr().out.split())
    text = re.sub(r"<style.*?</style>|<[^>]*>", " ", html, flags=re.S)
    for each in (said, text):
        assert "of a call" in each and not re.search(r"\b(steps?|backward|train(s|ing)?)\b", each), each


def test_what_cannot_be_profiled_is_said_in_a_sentence(tmp_path: Path, overdrive: Run) -> None:
    script = tmp_path / "none.py"
    script.write_text("print('no training here')\n")
    done = overdrive("profile", "none.py", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"overdrive: The program makes no training step that Overdrive can see", done.stderr)
    assert set(os.listdir(tmp_path)) <= {"none.py", "cache", "state"}  # nothing beside the script
    done = overdrive("profile", "-o", "none.py", "none.py", cwd=tmp_path)
    assert done.returncode == 2 and "is the script itself" in done.stderr
    assert script.read_text().startswith("print")


def test_without_limits_there_is_no_roof_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(**_: Any) -> Limits:
        raise LimitsUnavailable("No torch here.")

    monkeypatch.setattr(profile_command, "measured_limits", unavailable)
    assert profile_command._roof(profile_command.Measured()) == (None, "No torch here.")
    assert issubclass(CannotProfile, Exception)
