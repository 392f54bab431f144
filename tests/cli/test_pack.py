"""`overdrive pack`: runs that start with all samples decoded, or say why they do not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overdrive.cli import pack
from overdrive.cli.pack import CannotPack, write_pack
from overdrive.core.program import Program
from overdrive.trials import pool
from tests.conftest import Run
from tests.schemas import held
from tests.warm_trials import warm_trials

Write = Callable[[str], Path]

TRAIN = """
import sys
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

class Folder(Dataset):
    def __init__(self, root):
        self.paths = sorted(path for path in Path(root).rglob("*.*"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float() / 255
        return image, int(path.parent.name)

def main(workers):
    torch.manual_seed(0)
    train = DataLoader(Folder("data/train"), 8, shuffle=True, num_workers=workers)
    test = DataLoader(Folder("data/test"), 8, num_workers=workers)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for images, labels in train:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.9f}")
    print(sum((model(images).argmax(1) == labels).sum().item() for images, labels in test))

main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


def make_images(folder: Path, train: int = 40, test: int = 12) -> None:
    from PIL import Image

    draw = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        for number in range(count):
            place = folder / part / str(number % 4)
            place.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{number:04d}.{'jpg' if number % 2 else 'png'}")


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def project(script: Write) -> Path:
    pytest.importorskip("torch")
    folder = script(TRAIN).parent
    make_images(folder / "data")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pool, "LocalLauncher", warm_trials)
    return tmp_path / "cache"


def test_a_run_under_the_plan_starts_with_all_samples(
    project: Path,
    warm_python: Run,
    warm_run: Run,
    warm_overdrive: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = snapshot(project / "data")
    made = warm_overdrive("pack", "-o", "packed", "--json", "pack.json", "train.py", cwd=project)
    held("pack", json.loads((project / "pack.json").read_text()))
    assert made.returncode == 0, made.stderr
    assert "52 samples" in made.stdout and "2 data sets" in made.stdout
    assert snapshot(project / "data") == before
    again = warm_overdrive("pack", "--samples", "decoded", "-o", "packed", "train.py", cwd=project)
    assert "2 of which were there" in again.stdout

    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "elsewhere"))
    plain = warm_python("train.py", cwd=project)
    record = tmp_path / "record.json"
    words = ("--record", str(record), "--plan", "packed/plan.toml", "train.py")
    done = warm_run(*words, cwd=project)
    assert done.stdout == plain.stdout and done.returncode == 0, done.stderr
    assert json.loads(record.read_text())["techniques"] == ["sample_cache"]
    assert not (tmp_path / "elsewhere").exists(), "nothing was to be filled"

    (project / "data" / "train" / "0" / "0000.png").write_bytes((project / "data/train/0/0004.png").read_bytes())
    (project / "data" / "test" / "0" / "0000.png").write_bytes((project / "data/test/0/0004.png").read_bytes())
    plain = warm_python("train.py", cwd=project)
    done = warm_run(*words, cwd=project)
    assert done.stdout == plain.stdout and "holds no samples that are this data set's" in done.stderr
    assert json.loads(record.read_text())["techniques"] == []


@pytest.mark.fault(11)
def test_a_packing_that_was_killed_goes_on_after_the_last_whole_table(
    project: Path, warm_overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.chdir(project)
    real, copied = shutil.copytree, []

    def killed(source: Path, target: Path, **how: Any) -> None:
        """In the midst of the second table."""
        real(source, target, **how)
        copied.append(target)
        if len(copied) == 2:
            rows = next(target.glob("*.raw"))
            rows.write_bytes(rows.read_bytes()[:100])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pack.shutil, "copytree", killed)
        patch.setattr(pack.shutil, "rmtree", lambda *_, **__: None)  # nobody cleans up after a kill
        patch.setattr(os, "getpid", lambda: 2**22 + 1)  # of nobody: the highest number is 2**22
        with pytest.raises(KeyboardInterrupt):
            write_pack(Program("train.py"), project / "packed")
    left = [each.name for each in (project / "packed").iterdir()]
    assert len(left) == 2 and sum(name.startswith("partial-") for name in left) == 1
    again = warm_overdrive("pack", "-o", "packed", "train.py", cwd=project)
    assert again.returncode == 0 and "1 of which were there" in again.stdout, again.stderr
    assert not list((project / "packed").glob("partial-*")) and (project / "packed" / "plan.toml").exists()


def test_what_cannot_be_packed_is_told(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    script = project / "train.py"
    with pytest.raises(CannotPack, match="holds other things"):
        write_pack(Program("train.py"), tmp_path / "full")
    script.write_text(script.read_text().replace("/ 255", "/ 255 + torch.rand(1)"))
    with pytest.raises(CannotPack, match="no samples that could be packed"):
        write_pack(Program("train.py"), tmp_path / "packed")
    assert "draws random numbers" in capsys.readouterr().out and not (tmp_path / "packed").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "import torch\nw = torch.nn.Linear(2, 1)\no = torch.optim.SGD(w.parameters(), lr=0.1)\n"
            "w(torch.ones(1, 2)).sum().backward()\no.step()\n",
            "opens no DataLoader",
        ),
        ("import torch\n", "no training step"),
        ("raise ValueError('mine')\n", r"fails by itself \(ValueError: mine\)"),
    ],
)
def test_a_program_without_samples_is_told_why(
    text: str, says: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text(text)
    monkeypatch.chdir(project)
    with pytest.raises(CannotPack, match=says):
        write_pack(Program("train.py"), project / "out")
    assert not (project / "out").exists()


def test_bad_words_are_answered_in_one_sentence(project: Path, overdrive: Run) -> None:
    for words in (("pack",), ("pack", "nope.py"), ("pack", "--samples", "encoded", "train.py")):
        done = overdrive(*words, cwd=project)
        assert done.returncode == 2 and "Traceback" not in done.stderr, words
    (project / "file").write_text("mine")
    done = overdrive("pack", "-o", "file", "train.py", cwd=project)
    assert done.returncode == 1 and "is a file" in done.stderr
