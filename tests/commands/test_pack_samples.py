"""`overdrive pack --samples decoded`: runs that start with all samples decoded, or say why they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overdrive.commands.pack import CannotPack
from overdrive.commands.pack_samples import write_samples
from overdrive.program import Program
from tests.commands.test_pack import project, snapshot
from tests.conftest import Run

__all__ = ["project"]  # a fixture


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_run_under_the_plan_starts_with_all_samples(
    project: Path, python: Run, overdrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(project / "data")
    made = overdrive("pack", "--samples", "decoded", "-o", "packed", "train.py", cwd=project)
    assert made.returncode == 0, made.stderr
    assert "52 samples" in made.stdout and "2 data sets" in made.stdout
    assert snapshot(project / "data") == before
    again = overdrive("pack", "--samples", "decoded", "-o", "packed", "train.py", cwd=project)
    assert "2 of which were there" in again.stdout

    monkeypatch.setenv("OVERDRIVE_CACHE", str(tmp_path / "elsewhere"))
    plain = python("train.py", cwd=project)
    record = tmp_path / "record.json"
    words = ("run", "--record", str(record), "--plan", "packed/plan.toml", "train.py")
    done = overdrive(*words, cwd=project)
    assert done.stdout == plain.stdout and done.returncode == 0, done.stderr
    assert json.loads(record.read_text())["techniques"] == ["sample_cache"]
    assert not (tmp_path / "elsewhere").exists(), "nothing was to be filled"

    (project / "data" / "train" / "0" / "0000.png").write_bytes((project / "data/train/0/0004.png").read_bytes())
    (project / "data" / "test" / "0" / "0000.png").write_bytes((project / "data/test/0/0004.png").read_bytes())
    plain = python("train.py", cwd=project)
    done = overdrive(*words, cwd=project)
    assert done.stdout == plain.stdout and "holds no samples that are this data set's" in done.stderr
    assert json.loads(record.read_text())["techniques"] == []


def test_what_cannot_be_packed_is_told(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    script = project / "train.py"
    with pytest.raises(CannotPack, match="holds other things"):
        write_samples(Program("train.py"), tmp_path / "full")
    script.write_text(script.read_text().replace("/ 255", "/ 255 + torch.rand(1)"))
    with pytest.raises(CannotPack, match="no samples that could be packed"):
        write_samples(Program("train.py"), tmp_path / "packed")
    assert "draws random numbers" in capsys.readouterr().out and not (tmp_path / "packed").exists()
