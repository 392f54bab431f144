"""`overdrive pack --samples decoded`: runs that start with all samples decoded, or say why they do not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overdrive.commands.pack import CannotPack
from overdrive.commands.pack_samples import write_samples
from overdrive.core.program import Program
from tests.cli.test_pack import project, snapshot
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


def test_a_packing_that_was_killed_goes_on_after_the_last_whole_table(
    project: Path, overdrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from overdrive.commands import pack_samples

    monkeypatch.chdir(project)
    real, copied = shutil.copytree, []

    def killed(source: Path, target: Path) -> None:
        """In the midst of the second table."""
        real(source, target)
        copied.append(target)
        if len(copied) == 2:
            rows = next(target.glob("*.raw"))
            rows.write_bytes(rows.read_bytes()[:100])
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pack_samples.shutil, "copytree", killed)
        patch.setattr(pack_samples.shutil, "rmtree", lambda *_, **__: None)  # nobody cleans up after a kill
        patch.setattr(os, "getpid", lambda: 2**22 + 1)  # of nobody: the highest number is 2**22
        with pytest.raises(KeyboardInterrupt):
            write_samples(Program("train.py"), project / "packed")
    left = [each.name for each in (project / "packed").iterdir()]
    assert len(left) == 2 and sum(name.startswith("partial-") for name in left) == 1
    again = overdrive("pack", "--samples", "decoded", "-o", "packed", "train.py", cwd=project)
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
        write_samples(Program("train.py"), tmp_path / "full")
    script.write_text(script.read_text().replace("/ 255", "/ 255 + torch.rand(1)"))
    with pytest.raises(CannotPack, match="no samples that could be packed"):
        write_samples(Program("train.py"), tmp_path / "packed")
    assert "draws random numbers" in capsys.readouterr().out and not (tmp_path / "packed").exists()
