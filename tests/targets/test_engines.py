"""The libraries behind `export`, where they are installed; `make test-engines` brings them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run
from tests.schemas import held

INFER = """
import torch
from torch import nn
torch.manual_seed(0)
class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
    def forward(self, images):
        scores = self.fc(torch.relu(self.norm(self.conv(images))).mean((2, 3)))
        return {"scores": scores, "best": scores.argmax(1)}
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
    def forward(self, steps, state):
        hidden, state = self.lstm(steps, state)
        return self.fc(hidden), state
with torch.no_grad():
    WHAT
"""
WHAT = {
    "Convolutions": "model = Convolutions().eval(); [model(torch.randn(n, 3, 9, 9)) for n in (4, 4, 4, 2)]",
    "Recurrent": "model = Recurrent().eval(); zeros = torch.zeros(1, 3, 8)\n"
    "    [model(torch.randn(3, 5, 4), (zeros, zeros)) for n in range(4)]",
}


@pytest.mark.parametrize("model", WHAT)
@pytest.mark.parametrize(("target", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_a_folder_answers_as_the_program(
    target: str, library: str, model: str, tmp_path: Path, warm_overdrive: Run, python: Run
) -> None:
    if not find_spec(library):
        pytest.skip(f"{library} is not installed")
    (tmp_path / "infer.py").write_text(INFER.replace("WHAT", WHAT[model]))
    done = warm_overdrive("export", "--to", target, "--json", "told.json", "-o", "out", "infer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    held("export", told)
    assert told["model"] == model and told["proof"]["level"] == "rounding" and told["proof"]["inputs"]["recorded"] == 4
    ran = python(str(tmp_path / "out" / "run.py"), str(tmp_path / "out" / "example.npz"), "answers.npz", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    answers = np.load(tmp_path / "answers.npz")
    assert not list(tmp_path.rglob("onnxruntime.db*")), "what it would send to its makers"
    assert list(answers) == [each["name"] for each in told["signature"]["outputs"]]
    if model == "Convolutions":
        assert told["signature"]["inputs"][0]["shape"] == ["batch", 3, 9, 9]
        served = python("-c", TWO_INSTANCES, cwd=tmp_path / "out")
        assert served.returncode == 0, served.stderr
        threads = python("-c", FOUR_THREADS, cwd=tmp_path / "out")
        assert threads.returncode == 0, threads.stderr
        held_to_its_files(tmp_path / "out", python)


LOSING = """
import torch
from torch import nn
torch.manual_seed(0)
class Losing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(100, 4), nn.Linear(4, 4)
    def forward(self, tokens, x, codes):
        return torch.relu(self.fc(self.embed(tokens).mean(1) + x + self.embed(codes[:, 0].long())))
model = Losing().eval()
with torch.no_grad():
    [model(torch.randint(0, 100, (2, 8)), torch.randn(2, 4), torch.full((2, 3), 9.0 * n)) for n in range(6)]
"""
ASKED = """
import sys
import numpy as np
from pathlib import Path
from overdrive.serve.model import load
model = load(Path("."))
tokens, x, codes = np.full((2, 8), 99), np.ones((2, 4), np.float32), np.full((2, 3), 45, np.float32)
model.answer({"tokens": tokens, "x": x, "codes": codes})
def refused(name, place, value):
    given = {"tokens": tokens.copy(), "x": x.copy(), "codes": codes.copy()}
    given[name][place] = value
    for held in (model.checked, model.answer):
        try:
            held(given)
        except ValueError as error:
            assert "proved" in str(error)
        else:
            sys.exit(f"answered {value}")
for value in (-1, 100, 10**6):
    refused("tokens", (0, 0), value)
for value in (np.nan, np.inf):
    refused("x", (0, 0), value)
for value in (-1, 46, 100, 1e9):
    refused("codes", (0, 0), value)
"""


@pytest.mark.parametrize(("target", "library"), [("onnx", "onnxruntime"), ("openvino", "openvino")])
def test_what_the_model_raises_for_or_answers_nan_to_is_refused(
    target: str, library: str, tmp_path: Path, warm_overdrive: Run, python: Run
) -> None:
    if not find_spec(library):
        pytest.skip(f"{library} is not installed")
    (tmp_path / "infer.py").write_text(LOSING)
    done = warm_overdrive("export", "--to", target, "-o", "out", "infer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = python("-c", ASKED, cwd=tmp_path / "out")
    assert asked.returncode == 0, asked.stderr
    ran = python("run.py", "example.npz", "answers.npz", cwd=tmp_path / "out")
    assert ran.returncode == 0, ran.stderr


FOUR_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from run import answer
given = [{"images": np.full((4, 3, 9, 9), n, np.float32)} for n in range(4)]
alone = [answer(each)["scores"] for each in given]
def asked(n):
    return all(np.array_equal(answer(given[n])["scores"], alone[n]) for _ in range(300))
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(asked, range(4))), "the answer of another thread"
"""
TWO_INSTANCES = """
import numpy as np
from pathlib import Path
from overdrive.serve.instances import load_instances
made = load_instances(Path("."), 2, 1)
given = {"images": np.random.default_rng(0).standard_normal((4, 3, 9, 9)).astype(np.float32)}
one, other = made.answer(given), made.others[0](given)
assert all(np.array_equal(one[name], other[name]) for name in one) and len(made.others) == 1
"""


def held_to_its_files(folder: Path, python: Run) -> None:
    """A model that is cut short, or of another export, is never loaded."""
    told = json.loads((folder / "signature.json").read_text())
    for name in told["files"]:
        whole = (folder / name).read_bytes()
        for spoilt in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
            (folder / name).write_bytes(spoilt)
            ran = python("run.py", "example.npz", "answers.npz", cwd=folder)
            assert ran.returncode == 1 and f"{name} is not the file that was proved" in ran.stderr.splitlines()[-1]
        (folder / name).write_bytes(whole)


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="ONNX Runtime is not installed")
def test_a_repository_for_triton_answers_by_the_file_that_is_served(
    tmp_path: Path, warm_overdrive: Run, python: Run
) -> None:
    (tmp_path / "infer.py").write_text(INFER.replace("WHAT", WHAT["Convolutions"]))
    done = warm_overdrive("export", "--to", "triton", "-o", "out", "infer.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    served = tmp_path / "out" / "repository" / "model"
    assert sorted(str(each.relative_to(served)) for each in served.rglob("*.*")) == ["1/model.onnx", "config.pbtxt"]
    told = (served / "config.pbtxt").read_text()
    assert "dims: [ -1, 3, 9, 9 ]" in told and "TYPE_INT64" in told
    assert "tritonserver --model-repository=repository" in (tmp_path / "out" / "README.md").read_text()
    ran = python("run.py", "example.npz", "answers.npz", cwd=tmp_path / "out")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(not find_spec("onnx"), reason="ONNX is not installed")
def test_weights_that_were_exchanged_are_not_those_of_the_signature(tmp_path: Path, warm_overdrive: Run) -> None:
    """Two models of one form differ in the hash that the signature has of them."""
    hashes = set()
    for seed in range(2):
        script = INFER.replace("WHAT", WHAT["Convolutions"]).replace("manual_seed(0)", f"manual_seed({seed})")
        (tmp_path / "infer.py").write_text(script)
        done = warm_overdrive("export", "--to", "onnx", "--force", "-o", "out", "infer.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        hashes.add(json.loads((tmp_path / "out" / "signature.json").read_text())["weights_sha256"])
    assert len(hashes) == 2
