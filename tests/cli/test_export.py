"""`overdrive export` on the line: by AOTInductor, which needs no library but PyTorch; and what it refuses."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from overdrive.machine.cpu import instructions
from tests.conftest import Run
from tests.schemas import held

TRAIN = """
import torch
torch.manual_seed(0)
class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 3)
    def forward(self, rows):
        return torch.log_softmax(self.fc(rows), 1)
def main():
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).sum().backward()
        optimizer.step()
    model.eval()
    for _ in range(4):
        model(torch.randn(8, 6))
    torch.save(model.state_dict(), "weights.pt")
    print(model.fc.bias.tolist())
main()
"""


def in_folder(folder: Path) -> set[str]:
    """Without what the test itself keeps there."""
    return set(os.listdir(folder)) - {"cache", "state"}


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_training_scripts_model_as_it_is_at_the_end(train: Path, warm_overdrive: Run, python: Run) -> None:
    done = warm_overdrive("export", "--to", "aoti", "--json", "told.json", "train.py", cwd=train)
    assert done.returncode == 0, done.stderr
    folder = train / "train.export-aoti"
    assert in_folder(train) == {"told.json", "train.export-aoti", "train.py"}  # and no weights.pt
    names = "README.md checks.py example.npz latency.json model.pt2 proof.json run.py signature.json"
    assert sorted(os.listdir(folder)) == names.split()
    told = json.loads((train / "told.json").read_text())
    held("export", told)
    assert told["proof"]["inputs"]["recorded"] == 4 and told["signature"]["inputs"][0]["shape"] == ["batch", 6]
    # What it answers to zeros is its bias, after training.
    bias = json.loads(python("train.py", cwd=train).stdout)
    rows = np.zeros((5, 6), np.float32)
    np.savez(train / "in.npz", rows=rows)
    ran = python(str(folder / "run.py"), "in.npz", "out.npz", cwd=train)
    assert ran.returncode == 0, ran.stderr
    wanted = np.array(bias) - np.log(np.exp(bias).sum())
    assert np.allclose(np.load(train / "out.npz")["output"], np.tile(wanted, (5, 1)), atol=1e-5)
    np.savez(train / "in.npz", rows=rows.astype(float))
    ran = python(str(folder / "run.py"), "in.npz", "out.npz", cwd=train)
    assert ran.returncode == 1 and ran.stderr == "run.py: rows is of type float64; float32 is wanted\n"
    signature = json.loads((folder / "signature.json").read_text())
    assert signature["instructions"] == instructions()
    signature["instructions"].append("an_instruction_of_tomorrow")
    (folder / "signature.json").write_text(json.dumps(signature))
    ran = python(str(folder / "run.py"), "in.npz", "out.npz", cwd=train)
    assert ran.returncode == 1 and "compiled for a processor with an_instruction_of_tomorrow" in ran.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--to", "aoti", "-o", "there", "train.py"), "there already: --force replaces it"),
        (("--to", "aoti", "-o", "there", "--force", "train.py"), "holds no export"),
        (("--to", "tflite", "train.py"), "'tflite'"),
        (("train.py",), "--to"),
    ],
)
def test_wrong_lines_start_nothing(words: tuple[str, ...], told: str, train: Path, overdrive: Run) -> None:
    (train / "there").mkdir()
    (train / "there" / "photo.jpg").touch()
    done = overdrive("export", *words, cwd=train)
    assert done.returncode == 2 and told in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_missing_library_is_told_with_what_brings_it(train: Path, overdrive: Run) -> None:
    if find_spec("openvino"):
        pytest.skip("OpenVINO is installed")
    done = overdrive("export", "--to", "openvino", "train.py", cwd=train)
    assert done.returncode == 1 and "pip install openvino" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import torch\nprint('nothing to see')", "calls no model of PyTorch that has parameters"),
        ("import torch\nraise SystemExit(3)", "fails by itself"),
        (
            TRAIN.replace("torch.log_softmax(self.fc(rows), 1)", "self.fc(rows + torch.randn_like(rows))"),
            "Tagger cannot",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(script: str, told: str, train: Path, warm_overdrive: Run) -> None:
    (train / "train.py").write_text(script)
    done = warm_overdrive("export", "--to", "aoti", "train.py", cwd=train)
    assert done.returncode == 1 and told in done.stderr.splitlines()[-1] and in_folder(train) == {"train.py"}


@pytest.mark.long
def test_a_program_that_answers_for_ever_is_left_when_it_has_answered_enough(train: Path, overdrive: Run) -> None:
    endless = TRAIN[: TRAIN.index("def main")] + "model = Tagger().eval()\nwhile True:\n    model(torch.randn(4, 6))\n"
    (train / "train.py").write_text(endless)
    done = overdrive("export", "--to", "aoti", "train.py", cwd=train)
    assert done.returncode == 0, done.stderr


LATER = """
import sys, torch
sys.modules["overdrive.worker.answering"]._SECONDS = 0.0  # as if it had answered for long
class Tagger(torch.nn.Linear): pass
class Trained(torch.nn.Linear): pass
first = Tagger(6, 3)
for _ in range(40):
    first(torch.randn(8, 6))
Trained(6, 3)(torch.randn(8, 6))
"""


def test_a_script_that_has_answered_for_long_is_ended_or_runs_to_its_end(tmp_path: Path, warm_overdrive: Run) -> None:
    (tmp_path / "later.py").write_text(LATER)
    for options, called in (((), "Tagger"), (("--to-end",), "Tagger and Trained")):
        done = warm_overdrive("export", "--to", "aoti", "--model", "Other", *options, "later.py", cwd=tmp_path)
        assert f"calls no model Other, but {called}." in " ".join(done.stderr.split()), done.stderr
